"""Panels of eviction churn."""

from __future__ import annotations

from controlplane.policies.selectors import pool_watermarks
from controlplane.telemetry import evictions
from controlplane.telemetry.eviction_figures import Evictions, KvUseLines, Price, WorkerChurn, binned
from dashboard import freshness
from dashboard.charts import evictions as charts
from dashboard.data import PageData
from dashboard.evictions import matrix_of, owner_words
from dashboard.freshness import Freshness
from dashboard.marks import marks_column, with_marks
from dashboard.panels.base import Context, Panel, chart_context
from dashboard.tables import Cell, Table, series_table
from router.contract.snapshot import Watermark

LINES_DRAWN = 6
WORKERS_SHOWN = 50
NAMESPACES_SHOWN = 25
NO_EVENTS = "Start workers with --kv-events-config and name their endpoint on the worker's page."


def _of_polls(data: PageData) -> Freshness:
    return freshness.of_source(data, "polls", "polls")


def _prices(data: PageData) -> dict[str, Price]:
    return evictions.prices(now=data.now, workers=data.bare_workers)


def _marks(data: PageData) -> dict[str, Watermark]:
    return pool_watermarks(data.once(_prices))


def _evictions(data: PageData) -> Evictions:
    return evictions.evictions(data.scope, now=data.now, prices=data.once(_prices))


def _workers(data: PageData) -> list[WorkerChurn]:
    return evictions.worker_churn(
        data.scope, now=data.now, prices=data.once(_prices), marks=data.once(_marks), workers=data.bare_workers
    )


def _lines(data: PageData) -> KvUseLines:
    known = [row for row in data.once(_workers) if row.kv_use_max is not None]
    fullest = sorted(known, key=lambda row: -(row.kv_use_max or 0.0))[:LINES_DRAWN]
    return data.ask(evictions.kv_use_lines, workers=tuple(sorted(row.worker for row in fullest)))


def _facts(data: PageData) -> Context:
    found, rows = data.once(_evictions), data.once(_workers)
    removed, restored = _sum([row.removed for row in rows]), _sum([row.restored for row in rows])
    lost = [row.lost_gpu_s for row in rows if row.restored]
    lost_s = None if any(value is None for value in lost) or removed is None else sum(value or 0.0 for value in lost)
    hours = (min(data.scope.to, data.now) - data.scope.from_).total_seconds() / 3600
    return {
        "heard": removed is not None,
        "stored": _sum([row.stored for row in rows]),
        "removed": removed,
        "restored": restored,
        "restored_share": restored / removed if removed and restored is not None else None,
        "lost_s": lost_s,
        "lost_s_per_h": lost_s / hours if lost_s is not None and hours > 0 else None,
        "lifetime_ms": found.lifetime_ms,
        "restore_gap_ms": found.restore_gap_ms,
        "worst": next((row for row in rows if restored and (row.restored or 0) > restored / 2), None),
        "missing": "No KV events in this range: churn is unknown.",
        "next_step": NO_EVENTS,
    }


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _bands(data: PageData) -> Context:
    lines, marks = _lines(data), data.once(_marks)
    pools = {worker.partition("/")[0] for worker in lines.by_worker}
    found = {(mark.low, mark.high): mark for pool, mark in marks.items() if pool in pools}
    mark = next(iter(found.values())) if len(found) == 1 else None
    rows = [row for row in data.once(_workers) if row.kv_use_mean is not None]
    return chart_context(
        with_marks(charts.bands_figure(lines, mark, data.state.zone), data),
        list(lines.by_worker.values()),
        "No worker told its KV use in this range.",
        "Add workers, or choose a longer range.",
    ) | {
        "drawn": len(lines.by_worker),
        "count": len(rows),
        "different": len(found) > 1,
        "above": sum(1 for row in rows if row.high_share),
    }


def _lifetimes(data: PageData) -> Context:
    found = data.once(_evictions)
    known: list[float | None] = [float(sum(found.lifetime.values()) + sum(found.restore_gap.values())) or None]
    return chart_context(
        charts.lifetimes_figure(found),
        [known],
        "No lifetime of an evicted block is known in this range.",
        NO_EVENTS,
        from_first=False,
    ) | {"lifetime_ms": found.lifetime_ms, "restore_gap_ms": found.restore_gap_ms}


def _evicters(data: PageData) -> Context:
    return {"matrix": matrix_of(data.once(_evictions).evicted)}


def _namespaces(data: PageData) -> Context:
    losses = data.once(_evictions).losses[:NAMESPACES_SHOWN]
    return {"rows": [(owner_words(loss.namespace), loss) for loss in losses]}


def _by_worker(data: PageData) -> Context:
    rows = data.once(_workers)
    return {"rows": rows[:WORKERS_SHOWN], "more": max(0, len(rows) - WORKERS_SHOWN)}


def _bands_table(data: PageData) -> Table:
    lines = _lines(data)
    columns = [(f"{worker} (KV use, share)", values) for worker, values in lines.by_worker.items()]
    return series_table(lines, data.state.zone, [*columns, *marks_column(lines, data)])


def _lifetimes_table(data: PageData) -> Table:
    found = data.once(_evictions)
    rows = zip(charts.bin_names(), binned(found.lifetime), binned(found.restore_gap), strict=True)
    # Tables are shown last row first.
    table: list[list[Cell]] = [[name, lived, returned] for name, lived, returned in rows]
    return Table(["duration", "lived so long (blocks)", "came back after (blocks)"], table[::-1])


def _evicters_table(data: PageData) -> Table:
    evicted = sorted(data.once(_evictions).evicted.items(), key=lambda item: item[1])
    return Table(
        ["evicted by (inferred)", "blocks of", "blocks"],
        [[owner_words(evictor), owner_words(victim), blocks] for (evictor, victim), blocks in evicted],
    )


def _workers_table(data: PageData) -> Table:
    names = ("stored", "removed", "restored", "restored_share", "lost_gpu_s", "kv_use_mean", "kv_use_max",
             "high_share", "between_share", "resident_share", "gaps")  # fmt: skip
    headers = [
        "worker", "stored blocks", "removed blocks", "re-stored within 5 min", "of the removed (share)",
        "GPU-seconds lost",
        "KV use mean (share)", "KV use max (share)", "time at or above high (share)", "time in the band (share)",
        "cached at present (share)", "event gaps",
    ]  # fmt: skip
    return Table(
        headers, [[row.worker, *(getattr(row, name) for name in names)] for row in reversed(data.once(_workers))]
    )


PANELS = (
    Panel(
        "eviction_facts",
        "What eviction costs",
        "Re-stored: evicted, then computed again within 5 min. Lost: its tokens ÷ the prefill rate that routers have "
        "learnt, in GPU-seconds.",
        _facts,
        freshness.of_events,
    ),
    Panel(
        "watermark_bands",
        "KV use against the watermarks",
        "Blocks held by running requests, mean of each bucket, of the fullest workers. At the high watermark a worker "
        "takes no new prefixes, at the low one it takes them again; in the band it stays as it was.",
        _bands,
        _of_polls,
        table=_bands_table,
    ),
    Panel(
        "lifetimes",
        "Lifetime and return of blocks",
        "From a block's storing to its removal, and from its removal to its return, up to an hour. Many early returns: "
        "the cache is too small for what is asked again, or filled with what is not.",
        _lifetimes,
        freshness.of_events,
        table=_lifetimes_table,
    ),
    Panel(
        "evicters",
        "Who evicts whom (inferred)",
        "No event names a cause. A worker frees blocks when it allocates for a request: whoever stores next in the "
        "same batch is taken for the evictor. Thirty namespaces of a pool are told apart.",
        _evicters,
        freshness.of_events,
        table=_evicters_table,
    ),
    Panel(
        "eviction_namespaces",
        "Value lost by namespace",
        "Blocks evicted from each namespace, those evicted for another one (inferred), and what came back within "
        "5 min.",
        _namespaces,
        freshness.of_events,
    ),
    Panel(
        "eviction_workers",
        "By worker",
        "Most re-stored blocks first. Cached: blocks in the cache at present, held or not, of its capacity.",
        _by_worker,
        freshness.of_events,
        table=_workers_table,
    ),
)
