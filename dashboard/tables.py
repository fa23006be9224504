"""A chart as rows: the same buckets and values, for the table view and for CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from controlplane.telemetry.figures import Series, Values
from dashboard.data import PageData

Cell = str | float | None
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


@dataclass(frozen=True, slots=True)
class Table:
    headers: list[str]
    rows: list[list[Cell]]


def table_of(chart: str, data: PageData) -> Table:
    """Raises KeyError for an unknown chart."""
    return _TABLES[chart](data)


def to_csv(table: Table) -> str:
    """CSV with an empty cell for unknown; text that a spreadsheet would run as a formula is quoted by an apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([_safe(header) for header in table.headers])
    writer.writerows([[_safe(cell) for cell in row] for row in table.rows])
    return out.getvalue()


def _safe(cell: Cell) -> Cell:
    if isinstance(cell, str) and cell.lstrip(" ").startswith(_FORMULA_STARTS):
        return f"'{cell}"
    return "" if cell is None else cell


def _sources(data: PageData) -> Table:
    names = list(data.sources.by_source)
    return _table(data.sources, data.state.zone, [(f"{name} (tokens)", data.sources.by_source[name]) for name in names])


def _hits(data: PageData) -> Table:
    hits = data.hits
    return _table(
        hits,
        data.state.zone,
        [
            ("prompt tokens", hits.prompt_tokens),
            ("delivered hit tokens", hits.delivered_hit_tokens),
            ("predicted hit tokens", hits.predicted_hit_tokens),
            ("share of prompt tokens without known cached tokens", hits.unknown_prompt_share),
        ],
    )


def _ttft(data: PageData) -> Table:
    ttft = data.ttft
    return _table(
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
        ],
    )


def _heat(data: PageData) -> Table:
    heat = data.heat
    columns = [
        (f"{worker} ({heat.measure}, {heat.unit})", values)
        for worker, values in zip(heat.workers, heat.values, strict=True)
    ]
    return _table(heat, data.state.zone, columns)


def _churn(data: PageData) -> Table:
    churn = data.churn
    return _table(
        churn,
        data.state.zone,
        [
            ("stored (blocks/min)", churn.stored_per_min),
            ("removed (blocks/min)", churn.removed_per_min),
            ("net (blocks/min)", churn.net_per_min),
            ("re-stored (blocks/min)", churn.restored_per_min),
            ("event gaps", churn.gaps),
        ],
    )


_TABLES: dict[str, Callable[[PageData], Table]] = {
    "sources": _sources,
    "hits": _hits,
    "ttft": _ttft,
    "heat": _heat,
    "churn": _churn,
}


def _table(series: Series, zone: ZoneInfo, columns: Sequence[tuple[str, Values]]) -> Table:
    starts: Iterable[str] = (at.astimezone(zone).isoformat(timespec="seconds") for at in series.buckets)
    values = (series_values for _, series_values in columns)
    rows: list[list[Cell]] = [[start, *cells] for start, *cells in zip(starts, *values, strict=True)]
    return Table(headers=["from", *(name for name, _ in columns)], rows=rows)
