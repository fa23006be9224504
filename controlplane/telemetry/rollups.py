"""Adds contributions to the three widths of a rollup table.

Cost for a batch that touches k rows a width: one select and one upsert a width, O(k) rows moved, whatever the number
of contributions. Runs inside the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from django.db import connection, models

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

UPSERT_ROWS_MAX = 400
"""Rows of one statement: about 35 columns each stay below every database's limit of parameters."""


@dataclass(frozen=True, slots=True)
class Table:
    model: type[models.Model]
    shape: Shape
    lock_id: int
    """Advisory lock of PostgreSQL: pollers and ingester both read, add and write rows of one table."""
    kept: Retention = field(default_factory=lambda: RETENTION_S)
    """Its widths."""
    margin: Margin | None = None


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
    margin = table.margin
    if margin:
        lock_until_commit(margin.table.lock_id)
    for width_s, kept_s in table.kept.items():
        kept = [item for item in contributions if now_s - item.at_s < kept_s]
        differences = _add_width(table, grouped(table.shape, kept, width_s=width_s), width_s)
        if margin:
            fewer = [replace(item, dims=margin.dims_of(item.dims)) for item in (*kept, *differences)]
            _add_width(margin.table, grouped(margin.table.shape, fewer, width_s=width_s), width_s)


def lock_until_commit(lock_id: int) -> None:
    """One holder at a time, on PostgreSQL. SQLite's IMMEDIATE transactions exclude each other already."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [lock_id])


def _add_width(table: Table, rows: dict[tuple[int, Key], Values], width_s: int) -> list[Contribution]:
    """What the change of each row makes of the rates that the table's margin sums up."""
    if not rows:
        return []
    rates_of = table.margin.rates_of if table.margin else None
    differences = []
    stored = _stored(table, {start for start, _ in rows}, width_s)
    changed = []
    for (start, dims), values in rows.items():
        row = stored.get((start, dims), {})
        before = rates_of(row) if rates_of else {}
        merge_into(table.shape, row, values)
        if rates_of:
            difference = {name: value - before[name] for name, value in rates_of(row).items()}
            differences.append(Contribution(start, dims, difference))
        changed.append(_instance(table, width_s, start, dims, row))
    manager: Any = table.model._default_manager
    manager.bulk_create(
        changed,
        batch_size=UPSERT_ROWS_MAX,
        update_conflicts=True,
        unique_fields=["width_s", "start", *table.shape.dims],
        update_fields=table.shape.values,
    )
    return differences


def _stored(table: Table, starts: set[int], width_s: int) -> dict[tuple[int, Key], Values]:
    shape = table.shape
    manager: Any = table.model._default_manager
    query = manager.filter(width_s=width_s, start__in=[_time(start) for start in starts])
    found = {}
    for row in query.values("start", *shape.dims, *shape.values):
        key = (int(row["start"].timestamp()), tuple(row[name] for name in shape.dims))
        found[key] = {name: row[name] for name in shape.values}
    return found


def _instance(table: Table, width_s: int, start: int, dims: Key, values: Values) -> models.Model:
    named = dict(zip(table.shape.dims, dims, strict=True))
    return table.model(width_s=width_s, start=_time(start), **named, **values)


def _time(unix_s: int) -> datetime:
    return datetime.fromtimestamp(unix_s, UTC)
