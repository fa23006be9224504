"""Panels of the hit-tokens page: how much could be had, how much was, and where the rest is lost."""

from __future__ import annotations

from controlplane.telemetry.available import reach_by_namespace, reach_by_worker, reach_series
from controlplane.telemetry.available_figures import NamedReach, ReachSeries
from dashboard import freshness, reach_tiles
from dashboard.charts import hits as charts
from dashboard.data import PageData
from dashboard.panels.base import Context, Panel, chart_context
from dashboard.reach_words import CAUSES, ROUTING_LOSSES, headline, reach_row
from dashboard.tables import Table, series_table

ROWS_SHOWN = 10
_MISSING = "No router reported prompts in this range."
_NEXT_STEP = "Send a request through the router, or choose a longer range."


def _series(data: PageData) -> ReachSeries:
    series: ReachSeries = data.ask(reach_series)
    return series


def _headline(data: PageData) -> Context:
    total = _series(data).total
    title, sentence = headline(total)
    return {"title": title, "sentence": sentence}


def _tiles(data: PageData) -> Context:
    return {"tiles": reach_tiles.tiles_of(_series(data), data.state.query())}


def _funnel(data: PageData) -> Context:
    series = _series(data)
    total = series.total or reach_tiles.NOTHING
    known = [float(total.prompt_tokens) or None]
    lost = sorted(series.routing_loss.items(), key=lambda item: -item[1])
    return chart_context(charts.funnel_figure(total), [known], _MISSING, _NEXT_STEP, from_first=False) | {
        "routing": [(ROUTING_LOSSES.get(why, why), tokens) for why, tokens in lost if tokens],
        "causes": CAUSES,
    }


def _over_time(data: PageData) -> Context:
    series = _series(data)
    some = [value or None for value in series.prompt_tokens]
    return chart_context(charts.reach_figure(series, data.state.zone), [some], _MISSING, _NEXT_STEP)


def _sizes(data: PageData) -> Context:
    series = _series(data)
    return chart_context(
        charts.sizes_figure(series, data.state.zone),
        [series.hit_size_p50],
        "No answer named its cached tokens in this range.",
        "Start workers with --enable-prompt-tokens-details.",
    )


def _funnel_table(data: PageData) -> Table:
    total = _series(data).total or reach_tiles.NOTHING
    rows = [[label, tokens, total.share(tokens)] for label, tokens, _ in charts.funnel_rows(total)]
    return Table(headers=["step", "tokens", "share of prompt tokens"], rows=[list(row) for row in rows])


def _over_time_table(data: PageData) -> Table:
    series = _series(data)
    columns = [
        ("prompt tokens", series.prompt_tokens),
        ("available tokens", series.repeated_tokens),
        ("captured by routing (tokens)", series.expected_hit_tokens),
        ("delivered hit tokens", series.hit_tokens),
    ]
    return series_table(series, data.state.zone, columns)


def _sizes_table(data: PageData) -> Table:
    series = _series(data)
    columns = [("p50 (hit tokens)", series.hit_size_p50), ("p95 (hit tokens)", series.hit_size_p95)]
    return series_table(series, data.state.zone, columns)


def _rows(found: list[NamedReach], what: str, empty: str) -> Context:
    return {
        "rows": [reach_row(each) for each in found[:ROWS_SHOWN]],
        "what": what,
        "empty": empty,
        "left_out": max(0, len(found) - ROWS_SHOWN),
    }


def _namespaces(data: PageData) -> Context:
    return _rows(data.ask(reach_by_namespace)[0], "Namespace", _MISSING) | {"filter": "ns"}


def _templates(data: PageData) -> Context:
    return _rows(data.ask(reach_by_namespace)[1], "Template", "No request named a prompt template in this range.")


def _models(data: PageData) -> Context:
    return _rows(_series(data).models, "Model", _MISSING) | {"filter": "model"}


def _workers(data: PageData) -> Context:
    return _rows(data.ask(reach_by_worker), "Worker", _MISSING) | {"filter": "worker"}


PANELS = (
    Panel("reach-headline", "Verdict", "", _headline, template="reach_headline", of_tenants=True),
    Panel("reach-tiles", "Figures of reuse", "", _tiles, freshness.of_routers, template="reach_tiles", of_tenants=True),
    Panel(
        "reach-funnel",
        "Where prompt tokens are lost",
        "From all prompt tokens to those that workers delivered from their caches. Prefixes are compared in blocks of "
        "512 bytes of text and as far back as the routers' index reaches; each router sees the prompts that passed "
        "through it, so with several routers less looks available than is.",
        _funnel,
        freshness.of_routers,
        "reach_funnel",
        table=_funnel_table,
        of_tenants=True,
    ),
    Panel(
        "reach-series",
        "Available, captured, delivered",
        "Available: came before. Captured: the chosen worker was thought to hold it. Delivered: it did.",
        _over_time,
        freshness.of_routers,
        "chart",
        table=_over_time_table,
        of_tenants=True,
    ),
    Panel(
        "hit-sizes",
        "Hit tokens a request",
        "A rate alone hides whether many requests hit a little or few hit much.",
        _sizes,
        freshness.of_routers,
        "chart",
        table=_sizes_table,
        of_tenants=True,
    ),
    Panel(
        "reach-namespaces",
        "By namespace",
        "Those that computed most prompt tokens first, with the cause that explains most of them.",
        _namespaces,
        freshness.of_routers,
        "reach_rows",
        of_tenants=True,
    ),
    Panel(
        "reach-templates",
        "By template",
        "Prompt templates that requests named.",
        _templates,
        freshness.of_routers,
        "reach_rows",
        of_tenants=True,
    ),
    Panel(
        "reach-models",
        "By model",
        "Those that computed most prompt tokens first.",
        _models,
        freshness.of_routers,
        "reach_rows",
        of_tenants=True,
    ),
    Panel(
        "reach-workers",
        "By worker",
        "Of all tenants: a namespace's figures on one worker are not kept.",
        _workers,
        freshness.of_routers,
        "reach_rows",
    ),
)
