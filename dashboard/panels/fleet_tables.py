"""The fleet's charts as tables: the same buckets and values."""

from __future__ import annotations

from dashboard.data import PageData
from dashboard.marks import marks_column
from dashboard.tables import Table, series_table


def sources(data: PageData) -> Table:
    columns = [(f"{name} (tokens)", values) for name, values in data.sources.by_source.items()]
    if any(data.sources.loaded_bytes):
        columns += [("KV loaded (bytes)", data.sources.loaded_bytes), ("KV loading (ms)", data.sources.load_ms)]
    return series_table(data.sources, data.state.zone, [*columns, *marks_column(data.sources, data)])


def hits(data: PageData) -> Table:
    hits = data.hits
    return series_table(
        hits,
        data.state.zone,
        [
            ("prompt tokens", hits.prompt_tokens),
            ("delivered hit tokens", hits.delivered_hit_tokens),
            ("predicted hit tokens", hits.predicted_hit_tokens),
            ("share of prompt tokens without known cached tokens", hits.unknown_prompt_share),
            *marks_column(hits, data),
        ],
    )


def ttft(data: PageData) -> Table:
    ttft = data.ttft
    return series_table(
        ttft,
        data.state.zone,
        [
            ("hit p50 (ms)", ttft.hit_p50_ms),
            ("hit p95 (ms)", ttft.hit_p95_ms),
            ("miss p50 (ms)", ttft.miss_p50_ms),
            ("miss p95 (ms)", ttft.miss_p95_ms),
            ("delta p50 (ms)", ttft.delta_p50_ms),
            ("hits", ttft.hit_count),
            ("misses", ttft.miss_count),
            *marks_column(ttft, data),
        ],
    )


def heat(data: PageData) -> Table:
    heat = data.heat
    columns = [
        (f"{worker} ({heat.measure}, {heat.unit})", values)
        for worker, values in zip(heat.workers, heat.values, strict=True)
    ]
    return series_table(heat, data.state.zone, columns)


def churn(data: PageData) -> Table:
    churn = data.churn
    return series_table(
        churn,
        data.state.zone,
        [
            ("stored (blocks/min)", churn.stored_per_min),
            ("removed (blocks/min)", churn.removed_per_min),
            ("net (blocks/min)", churn.net_per_min),
            ("re-stored (blocks/min)", churn.restored_per_min),
            ("event gaps", churn.gaps),
            *marks_column(churn, data),
        ],
    )
