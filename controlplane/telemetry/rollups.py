"""Adds contributions to the three widths of a rollup table.

Cost for a batch that touches k rows: one select and one upsert a table, of these k rows alone, whatever the number of
contributions and the size of the fleet. Runs inside the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, lru_cache

from django.db import connection, models

from controlplane.row_sets import RowSet
from controlplane.telemetry.merge import (
    EVICTIONS,
    HEAT,
    REQUESTS,
    SLICES,
    TOTALS,
    WORKER_TOTALS,
    WORKERS,
    Contribution,
    Key,
    Shape,
    Values,
    churn_rates,
    grouped,
    merge_into,
    widened,
)
from controlplane.telemetry.models import (
    EvictionRollup,
    PrefixHeatRollup,
    RequestRollup,
    RequestTotal,
    SliceRollup,
    WorkerRollup,
    WorkerTotal,
)
from controlplane.telemetry.windows import RETENTION_S, SLICE_RETENTION_S, Retention

Place = tuple[int, int, Key]
"""Of a row: width, start in Unix seconds, dimensions."""


@dataclass(frozen=True)
class Table:
    model: type[models.Model]
    shape: Shape
    lock_id: int
    """Advisory lock of PostgreSQL: pollers and ingester both read, add and write rows of one table."""
    kept: Retention = field(default_factory=lambda: RETENTION_S)
    """Its widths."""
    margin: Margin | None = None

    @cached_property
    def rows(self) -> RowSet:
        return RowSet(self.model, ("width_s", "start", *self.shape.dims), self.shape.values)


@dataclass(frozen=True, slots=True)
class Margin:
    """A table with the same sums by fewer dimensions; what is added to the one is added to the other too."""

    table: Table
    dims_of: Callable[[Key], Key]
    rates_of: Callable[[Values], Values] = lambda row: {}
    """Of a row of the wide table: figures that are no sums of contributions. The margin has their sum over the rows,
    and gets the difference that each change of a row makes."""


REQUEST_TABLE = Table(
    RequestRollup,
    REQUESTS,
    0x54494445_00000001,
    margin=Margin(Table(RequestTotal, TOTALS, 0x54494445_00000005), dims_of=lambda dims: (dims[2], dims[4])),
)
WORKER_TABLE = Table(
    WorkerRollup,
    WORKERS,
    0x54494445_00000002,
    margin=Margin(
        Table(WorkerTotal, WORKER_TOTALS, 0x54494445_00000008),
        dims_of=lambda dims: (dims[0].partition("/")[0],),
        rates_of=churn_rates,
    ),
)
HEAT_TABLE = Table(PrefixHeatRollup, HEAT, 0x54494445_00000003)
EVICTION_TABLE = Table(EvictionRollup, EVICTIONS, 0x54494445_00000006)
SLICE_TABLE = Table(SliceRollup, SLICES, 0x54494445_00000007, kept=SLICE_RETENTION_S)


def add(table: Table, contributions: Sequence[Contribution], *, now_s: float) -> None:
    """Merge into the rows of each width that is still kept at the contribution's time."""
    if not contributions:
        return
    lock_until_commit(table.lock_id)
    finer = grouped(table.shape, contributions, width_s=min(table.kept))
    differences = _add_rows(table, _in_widths(table, finer, now_s))
    if table.margin:
        lock_until_commit(table.margin.table.lock_id)
        _add_rows(table.margin.table, _in_margin(table.margin, finer, differences, now_s))


def lock_until_commit(lock_id: int) -> None:
    """One holder at a time, on PostgreSQL. SQLite's IMMEDIATE transactions exclude each other already."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [lock_id])


def _in_widths(table: Table, finer: Mapping[tuple[int, Key], Values], now_s: float) -> dict[Place, Values]:
    """What is to be added to each row. A wider row is the sum of the finest: contributions are gone through once."""
    changes: dict[Place, Values] = {}
    for width_s, kept_s in table.kept.items():
        rows = widened(table.shape, finer, width_s=width_s, since_s=now_s - kept_s)
        changes.update({(width_s, start, dims): values for (start, dims), values in rows.items()})
    return changes


def _in_margin(
    margin: Margin, finer: Mapping[tuple[int, Key], Values], differences: Mapping[Place, Values], now_s: float
) -> dict[Place, Values]:
    shape = margin.table.shape
    fewer: dict[tuple[int, Key], Values] = {}
    for (start, dims), values in finer.items():
        merge_into(shape, fewer.setdefault((start, margin.dims_of(dims)), {}), values)
    changes = _in_widths(margin.table, fewer, now_s)
    for (width_s, start, dims), values in differences.items():
        merge_into(shape, changes.setdefault((width_s, start, margin.dims_of(dims)), {}), values)
    return changes


def _add_rows(table: Table, changes: dict[Place, Values]) -> dict[Place, Values]:
    """What the change of each row makes of the rates that the table's margin sums up."""
    rates_of = table.margin.rates_of if table.margin else None
    keys = {place: (place[0], _time(place[1]), *place[2]) for place in changes}
    stored = table.rows.read(list(keys.values()))
    differences: dict[Place, Values] = {}
    changed = []
    for place, values in changes.items():
        row = stored.get(keys[place], {})
        before = rates_of(row) if rates_of else {}
        merge_into(table.shape, row, values)
        if rates_of:
            differences[place] = {name: value - before[name] for name, value in rates_of(row).items()}
        changed.append((keys[place], row))
    table.rows.upsert(changed)
    return differences


@lru_cache(maxsize=256)
def _time(unix_s: int) -> datetime:
    return datetime.fromtimestamp(unix_s, UTC)
