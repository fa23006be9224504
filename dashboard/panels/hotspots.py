"""Panels of hot spots, and of one prefix."""

from __future__ import annotations

from controlplane.telemetry import hotspots
from controlplane.telemetry.hotspot_figures import Concentration, HotSpot, MatchPoint, PrefixSeries, concentration
from dashboard import freshness
from dashboard.charts import hotspots as charts
from dashboard.data import PageData
from dashboard.freshness import Freshness
from dashboard.hotspots import prefix_rows, rule_rows, shown_rules
from dashboard.panels.base import Context, Panel, chart_context, mean
from dashboard.tables import Cell, Table, series_table

PREFIXES_SHOWN = 25
DECISIONS_SHOWN = 20
NO_PREFIX = "A prefix is listed once routers see it repeatedly."


def _of_routers(data: PageData) -> Freshness:
    return freshness.of_source(data, "router", "routers")


def _of_polls(data: PageData) -> Freshness:
    return freshness.of_source(data, "polls", "polls")


def _prefixes(data: PageData) -> Context:
    busiest = tuple(key for key, _ in data.ask(hotspots.prefix_requests)[:PREFIXES_SHOWN])
    spots = data.ask(hotspots.spots_among, keys=busiest)
    return {"rows": prefix_rows(spots, data.ask(shown_rules), now=data.now)}


def _imbalance(data: PageData) -> Context:
    series = data.ask(hotspots.imbalance)
    known = [value for value in series.ratio if value is not None]
    load, asked = data.ask(hotspots.worker_load), _requests_by_prefix(data)
    return chart_context(
        charts.imbalance_figure(series, data.state.zone),
        [series.ratio],
        "No worker computed prompts in this range.",
        "The ratio needs two polled workers of one pool; add workers, or choose a longer range.",
    ) | {
        "mean_ratio": mean(series.ratio),
        "hot_share": sum(value > charts.HOT_RATIO for value in known) / len(known) if known else None,
        "hot_ratio": charts.HOT_RATIO,
        "busiest": load.parts[-1] if load.total else None,
        "busiest_share": load.parts[-1][1] / load.total if load.total else None,
        "worker_gini": load.gini,
        "prefix_gini": asked.gini,
        "top_prefix_share": asked.parts[-1][1] / asked.total if asked.total else None,
    }


def _balance(data: PageData) -> Context:
    found = data.ask(hotspots.worker_load)
    return _lorenz(found, "workers", "prefill", "No worker computed prompts in this range.", "Add workers.")


def _concentration(data: PageData) -> Context:
    return _lorenz(
        _requests_by_prefix(data), "prefixes", "requests", "No hot prefixes in this range.", NO_PREFIX
    )  # fmt: skip


def _lorenz(found: Concentration, parts: str, amount: str, missing: str, next_step: str) -> Context:
    known = [found.total or None]
    figure = charts.lorenz_figure(found, parts=parts, amount=amount)
    return chart_context(figure, [known], missing, next_step, from_first=False) | {
        "gini": found.gini,
        "count": len(found.parts),
        "parts": parts,
        "amount": amount,
    }


def _requests_by_prefix(data: PageData) -> Concentration:
    return concentration(
        [("/".join(key), float(count)) for key, count in data.ask(hotspots.prefix_requests)]
    )  # fmt: skip


def _match(data: PageData) -> Context:
    points = data.ask(hotspots.queue_against_match)
    left = [point for point in points if point.left_the_best]
    return chart_context(
        charts.match_figure(points),
        [[point.queue_ms for point in points]],
        "No explained decision in this range.",
        "About 1 % of the requests are explained; choose a longer range.",
        from_first=False,
    ) | {
        "points": len(points),
        "left": len(left),
        "spared_ms": mean([point.best_queue_ms - point.queue_ms for point in left]),
        "given_up": mean([float(point.best_matched_tokens - point.matched_tokens) for point in left]),
    }


def _placements(data: PageData) -> Context:
    return {"rows": rule_rows(data.ask(shown_rules), now=data.now)}


def _item(data: PageData) -> tuple[str, str]:
    """Pool and prefix that the page is about."""
    pool, _, prefix = data.state.item.partition("/")
    return pool, prefix


def _spots(data: PageData) -> list[HotSpot]:
    pool, prefix = _item(data)
    return data.ask(hotspots.spots_of, pool=pool, prefix=prefix)


def _prefix_facts(data: PageData) -> Context:
    spots = _spots(data)
    return {"spot": spots[0] if spots else None, "requests": sum(spot.requests for spot in spots)}


def _prefix_series(data: PageData) -> PrefixSeries:
    pool, prefix = _item(data)
    return data.ask(hotspots.prefix_series, pool=pool, prefix=prefix)


def _prefix_trend(data: PageData) -> Context:
    series = _prefix_series(data)
    return chart_context(
        charts.prefix_figure(series, data.state.zone),
        list(series.by_worker.values()),
        "No request of this prefix in this range.",
        NO_PREFIX,
    )


def _prefix_workers(data: PageData) -> Context:
    return {"spots": _spots(data)}


def _prefix_decisions(data: PageData) -> Context:
    _, prefix = _item(data)
    return {"points": data.ask(hotspots.queue_against_match, prefix=prefix)[:DECISIONS_SHOWN] if prefix else []}


def _imbalance_table(data: PageData) -> Table:
    series = data.ask(hotspots.imbalance)
    columns = [("busiest worker ÷ mean", series.ratio), ("computed prompt tokens/s", series.tokens_per_s)]
    return series_table(series, data.state.zone, columns)


def _parts_table(found: Concentration, name: str, amount: str) -> Table:
    rows: list[list[Cell]] = [
        [part, value, value / found.total if found.total else None] for part, value in reversed(found.parts)
    ]
    return Table([name, amount, "share"], rows[::-1])


def _match_table(data: PageData) -> Table:
    points: list[MatchPoint] = data.ask(hotspots.queue_against_match)
    headers = [
        "request", "chosen worker", "matched tokens", "queue (ms)", "best match", "its matched tokens",
        "its queue (ms)",
    ]  # fmt: skip
    rows: list[list[Cell]] = [
        [
            point.request_id, point.worker, point.matched_tokens, point.queue_ms, point.best_worker,
            point.best_matched_tokens, point.best_queue_ms,
        ]
        for point in reversed(points)
    ]  # fmt: skip
    return Table(headers, rows)


def _prefix_table(data: PageData) -> Table:
    series = _prefix_series(data)
    columns = [(f"{worker} (requests/s)", values) for worker, values in series.by_worker.items()]
    columns += [("predicted hit share", series.hit_share), ("queue (ms)", series.queue_ms), ("homes", series.homes)]
    return series_table(series, data.state.zone, columns)


PANELS = (
    Panel(
        "prefixes",
        "Hottest prefixes",
        "By keyed id, never text. Tokens: the head that its requests share. Load: of what one worker can do. Homes: "
        "workers that it is spread over, by its load or a placement rule.",
        _prefixes,
        _of_routers,
        of_tenants=True,
    ),
    Panel(
        "imbalance",
        "Busiest worker against the mean",
        "Prompt tokens that each worker had to compute, the most of a pool ÷ its mean; of several pools the worst. "
        "Gini: 0 = all equal, towards 1 = one has all.",
        _imbalance,
        _of_polls,
        table=_imbalance_table,
    ),
    Panel(
        "balance",
        "Load by worker",
        "Lorenz curve of computed prompt tokens: the further below the diagonal, the fewer workers do the work.",
        _balance,
        _of_polls,
        "lorenz",
        table=lambda data: _parts_table(data.ask(hotspots.worker_load), "worker", "computed prompt tokens"),
    ),
    Panel(
        "concentration",
        "Requests by prefix",
        "Lorenz curve of requests over the prefixes that routers saw repeatedly: how much a few prefixes ask.",
        _concentration,
        _of_routers,
        "lorenz",
        table=lambda data: _parts_table(_requests_by_prefix(data), "prefix", "requests"),
        of_tenants=True,
    ),
    Panel(
        "match",
        "Queue against match",
        "Explained decisions: what the chosen worker held and how long its queue was. A line leads to the worker that "
        "held more and was left because waiting there would have cost more than its cache saves.",
        _match,
        _of_routers,
        table=_match_table,
        of_tenants=True,
    ),
    Panel(
        "placements",
        "Placement rules",
        "A rule spreads a prefix over at least so many workers until its time. Before: the hour before it began; under "
        "it: its last hour.",
        _placements,
        of_tenants=True,
    ),
    Panel("prefix_facts", "This prefix", "As routers counted and predicted it.", _prefix_facts, _of_routers,
          of_tenants=True),
    Panel(
        "prefix_trend",
        "Requests by worker",
        "Requests a second of this prefix; the table adds hits, queue and homes.",
        _prefix_trend,
        _of_routers,
        "chart",
        table=_prefix_table,
        of_tenants=True,
    ),
    Panel(
        "prefix_workers",
        "Who serves and holds it",
        "Holds: a router believed at the end of the range that the head is cached there.",
        _prefix_workers,
        _of_routers,
        of_tenants=True,
    ),
    Panel(
        "prefix_askers",
        "Who asks",
        "A prefix belongs to one namespace, or to those that share a cache domain.",
        _prefix_workers,
        _of_routers,
        of_tenants=True,
    ),
    Panel(
        "prefix_decisions",
        "Explained decisions",
        "The newest that were explained: about 1 % of the requests.",
        _prefix_decisions,
        _of_routers,
        of_tenants=True,
    ),
)  # fmt: skip
