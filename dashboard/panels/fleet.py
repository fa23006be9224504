"""Panels of the whole fleet."""

from __future__ import annotations

from controlplane.telemetry.figures import HEAT_MEASURES, Series, Values
from dashboard import freshness, links, numbers, tiles
from dashboard.charts import fleet as charts
from dashboard.charts.base import GREY, HIT, MISS, Figure, earlier, per_second
from dashboard.data import PageData
from dashboard.marks import with_marks
from dashboard.panels import fleet_tables
from dashboard.panels.base import Context, Panel, chart_context, mean

WORKERS_SHOWN = 12
"""Of the strip: what fits beside the heat map; the workers page has them all."""


def _verdict(data: PageData) -> Context:
    return {"verdict": tiles.verdict_of(data)}


def _tiles(data: PageData) -> Context:
    return {"tiles": tiles.tiles_of(data)}


def _sources(data: PageData) -> Context:
    known = list(data.sources.by_source.values())
    figure = charts.sources_figure(data.sources, data.hits, data.state.zone)
    if before := data.sources_earlier:
        figure["data"] += _earlier(data, "All", before, charts.all_sources(before), "%{y:.3s} tok/s")
    return chart_context(
        with_marks(figure, data),
        known,
        "No prompt tokens in this range.",
        "Send a request through the router, or choose a longer range.",
    )


def _hits(data: PageData) -> Context:
    figure = charts.hit_tokens_figure(data.hits, data.state.zone)
    if before := data.hits_earlier:
        values = per_second(before, before.delivered_hit_tokens)
        figure["data"] += _earlier(data, "Delivered", before, values, "%{y:.3s} tok/s", colour=HIT)
    return chart_context(
        with_marks(figure, data),
        [data.hits.prompt_tokens],
        "No router reported requests in this range.",
        "Send a request through the router; check that it is listed under Policies.",
    ) | {"unknown_share": mean(data.hits.unknown_prompt_share)}


def _ttft(data: PageData) -> Context:
    series = data.ttft
    known = [series.hit_p50_ms, series.miss_p50_ms]
    both = [value for value in series.delta_p50_ms if value is not None]
    figure = charts.ttft_figure(series, data.state.zone)
    if before := data.ttft_earlier:
        figure["data"] += [
            *_earlier(data, "Hit p50", before, before.hit_p50_ms, "%{y:,.3~r} ms", colour=HIT),
            *_earlier(data, "Miss p50", before, before.miss_p50_ms, "%{y:,.3~r} ms", colour=MISS, named=False),
        ]
    return chart_context(
        with_marks(figure, data),
        known,
        "No first tokens were measured in this range.",
        "TTFT of hits and misses needs workers started with --enable-prompt-tokens-details.",
    ) | {
        "hit_ms": data.tiles.ttft_hit_p50_ms.value,
        "miss_ms": data.tiles.ttft_miss_p50_ms.value,
        "delta_known": bool(both),
    }


def _earlier(
    data: PageData,
    name: str,
    series: Series,
    values: Values,
    template: str,
    *,
    colour: str = GREY,
    named: bool = True,
) -> list[Figure]:
    """A line of the span that the page compares with; none when nothing is known of it. `named`: in the legend."""
    if data.earlier is None or not any(value is not None for value in values):
        return []
    by = data.scope.from_ - data.earlier.from_
    words = f"{name}, {data.state.compared_words}"
    drawn = earlier(words, series, values, by=by, zone=data.state.zone, colour=colour)
    return [drawn | {"hovertemplate": template, "showlegend": named}]


def _heat(data: PageData) -> Context:
    return chart_context(
        charts.heat_figure(data.heat, data.state.zone),
        data.heat.values,
        "No worker has reported this measure in this range.",
        "Add a worker, or choose another measure.",
    ) | {
        "left_out": data.heat.left_out,
        "drawn": len(data.heat.workers),
        "top": numbers.percent(charts.heat_top(data.heat))
        if data.heat.unit == "share"
        else f"{numbers.count(charts.heat_top(data.heat))} {data.heat.unit}",
        "measures": [
            {"key": key, "label": _MEASURE_WORDS.get(key, key), "on": key == data.state.m, "q": data.state.query(m=key)}
            for key in HEAT_MEASURES
        ],
    }


_MEASURE_WORDS = {
    "kv_use": "KV use",
    "running": "Running",
    "hit_share": "Hit share",
    "evictions": "Evictions",
    "requests": "Requests",
}


def _churn(data: PageData) -> Context:
    figure = charts.churn_figure(data.churn, data.state.zone)
    if before := data.churn_earlier:
        figure["data"] += _earlier(data, "Removed", before, before.removed_per_min, "%{y:,.3~r} blocks/min")
    return chart_context(
        with_marks(figure, data),
        [data.churn.stored_per_min, data.churn.removed_per_min],
        "No KV events in this range: churn is unknown.",
        "Start workers with --kv-events-config and name their endpoint on the worker's page.",
    ) | {"gaps": sum(int(value) for value in data.churn.gaps if value)}


def _attention(data: PageData) -> Context:
    return {"items": [links.attention_row(item, data.state) for item in data.attention]}


def _strip(data: PageData) -> Context:
    """Every worker of a small fleet; of a larger one those in trouble, then the fullest."""
    rows = data.workers
    if len(rows) > WORKERS_SHOWN:
        rows = sorted(rows, key=lambda row: (row.health == "ok", -(row.kv_use or 0.0)))[:WORKERS_SHOWN]
    return {"workers": rows, "left_out": len(data.workers) - len(rows), "all": len(data.workers)}


def _sources_of_data(data: PageData) -> Context:
    return {"sources": data.freshness}


PANELS = (
    Panel("verdict", "Verdict", "", _verdict),
    Panel("tiles", "Figures", "", _tiles, freshness.of_requests),
    Panel(
        "sources",
        "Prompt tokens by source",
        "Where the KV of prompt tokens came from, as workers count it, against the hits that the router predicted.",
        _sources,
        freshness.of_polls,
        "chart",
        table=fleet_tables.sources,
    ),
    Panel(
        "hits",
        "Hit tokens delivered and predicted",
        "Hit tokens that workers named in their answers, those the router expected, and all prompt tokens.",
        _hits,
        freshness.of_requests,
        "hits",
        table=fleet_tables.hits,
        of_tenants=True,
    ),
    Panel(
        "ttft",
        "TTFT, hit against miss",
        "Hit: at least half of the prompt cached. Miss: nothing cached. The band is the difference of the medians.",
        _ttft,
        freshness.of_requests,
        table=fleet_tables.ttft,
        of_tenants=True,
    ),
    Panel(
        "heat",
        "Hot spots: worker × time",
        "One row a worker. A bright row beside dark ones is a hot spot; an empty cell means nothing was reported.",
        _heat,
        freshness.of_polls,
        table=fleet_tables.heat,
    ),
    Panel(
        "churn",
        "Eviction churn",
        "Blocks stored in and removed from prefix caches. Re-stored: evicted, then computed again within 5 min.",
        _churn,
        freshness.of_events,
        table=fleet_tables.churn,
    ),
    Panel(
        "attention",
        "Needs attention",
        "Open findings, violations and workers that went silent; most severe first.",
        _attention,
        freshness.of_polls,
    ),
    Panel(
        "strip",
        "Workers",
        "State of workers at their last poll; of a large fleet those in trouble, then the fullest.",
        _strip,
        freshness.of_polls,
    ),
    Panel("origins", "Freshness of sources", "When each source of figures last spoke.", _sources_of_data),
)
