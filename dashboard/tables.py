"""A chart as rows: the same buckets and values, for the table view and for CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from controlplane.telemetry.figures import Series

Cell = str | float | None
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


@dataclass(frozen=True, slots=True)
class Table:
    headers: list[str]
    rows: list[list[Cell]]


def to_csv(table: Table) -> str:
    """CSV with an empty cell for unknown; text that a spreadsheet would run as a formula is quoted by an apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([disarmed(header) for header in table.headers])
    writer.writerows([[disarmed(cell) for cell in row] for row in table.rows])
    return out.getvalue()


def disarmed(cell: Cell) -> Cell:
    if isinstance(cell, str) and cell.lstrip(" ").startswith(_FORMULA_STARTS):
        return f"'{cell}"
    return "" if cell is None else cell


def series_table(series: Series, zone: ZoneInfo, columns: Sequence[tuple[str, Sequence[Cell]]]) -> Table:
    starts: Iterable[str] = (at.astimezone(zone).isoformat(timespec="seconds") for at in series.buckets)
    values = (series_values for _, series_values in columns)
    rows: list[list[Cell]] = [[start, *cells] for start, *cells in zip(starts, *values, strict=True)]
    return Table(headers=["from", *(name for name, _ in columns)], rows=rows)
