"""Rollup rows summed to one a bucket: numbers added up by the database, counts by label merged here.

A bucket of a large fleet has a row for each pool and model, of a tenant one for each namespace and worker. What leaves
the database is one row a bucket, and its histograms as one text: they are neither unfolded in SQL, which costs the
database more than their sum saves, nor read one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec
from django.db.models import Aggregate, F, Func, IntegerField, Max, QuerySet, Sum, TextField

from controlplane.telemetry.merge import REQUESTS, Shape, Values
from controlplane.telemetry.models import RequestRollup, RequestTotal
from controlplane.telemetry.rollup_rows import REQUEST_DIMS, TOTAL_DIMS, RequestReading, segments_q
from controlplane.telemetry.windows import Grid, Scope, Segment

_decode = msgspec.json.Decoder(list[dict[str, int | float]]).decode


def read_buckets(scope: Scope, segments: Sequence[Segment], fields: Sequence[str]) -> RequestReading:
    """What `rollup_rows.read_requests` reads, summed: one row for each bucket of each width, and one without fields
    where routers reported and nothing of the scope happened. One query, two for a scope with dimensions."""
    wanted = dims_of(scope)
    rows_of: Any = RequestRollup if wanted.keys() - set(TOTAL_DIMS) else RequestTotal
    found = rows_of.objects.filter(segments_q(segments), **wanted)
    rows = list(sums_of_buckets(found, REQUESTS, fields))
    if wanted:
        reported = RequestTotal.objects.filter(segments_q(segments), pool="", model="")
        rows += [(width_s, start, {}) for width_s, start in reported.values_list("width_s", "start")]
    return RequestReading(rows)


def dims_of(scope: Scope) -> dict[str, str]:
    """Conditions on request rows. A namespace's name begins with its tenant's, which has an index."""
    wanted = {name: getattr(scope, name) for name in REQUEST_DIMS if getattr(scope, name)}
    tenant = scope.tenant or scope.namespace.partition("/")[0]
    return wanted | ({"tenant": tenant} if tenant else {})


def sums_of_buckets(
    rows: QuerySet[Any], shape: Shape, fields: Sequence[str] = ()
) -> Iterator[tuple[int, datetime, Values]]:
    """(width, start, fields) of each bucket with any row, by start. `fields`: of the shape; none = all. One query."""
    for row in sums_by(rows, ("width_s", "start"), shape, fields):
        yield row.pop("width_s"), row.pop("start"), row


def sums_by(rows: QuerySet[Any], dims: Sequence[Any], shape: Shape, fields: Sequence[str] = ()) -> Iterator[Values]:
    """The shape's fields summed over the rows that agree in the dimensions, with these, in their order. One query."""
    wanted = fields or shape.values
    counts = [name for name in wanted if name in shape.dicts]
    numbers = [name for name in wanted if name not in shape.dicts]
    columns: list[Aggregate] = [Max(name) if name in shape.maxes else Sum(name) for name in numbers]
    columns += [JsonTexts(name) for name in counts]
    summed = rows.order_by(*dims).values_list(*dims)
    # Named apart: Django refuses an annotation that has a field's name.
    for row in summed.annotate(**{f"sum_{place}": column for place, column in enumerate(columns)}):
        values = dict(zip((*dims, *numbers, *counts), row, strict=True))
        for name in counts:
            values[name] = merged_texts(values[name])
        yield values


class Place(Func):
    """Which of a grid's points a row belongs to, counted by the database: rows of one point can be grouped there."""

    output_field = IntegerField()

    def __init__(self, grid: Grid) -> None:
        super().__init__(F("start"))
        self._sql = f"(({{epoch}} - {int(grid.first.timestamp())}) / {grid.step_s})"

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        # Its percent sign passes two formattings.
        template = self._sql.format(epoch="CAST(STRFTIME('%%%%s', %(expressions)s) AS INTEGER)")
        return self.as_sql(compiler, connection, template=template, **context)

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        template = self._sql.format(epoch="EXTRACT(EPOCH FROM %(expressions)s)::bigint")
        return self.as_sql(compiler, connection, template=template, **context)


class JsonTexts(Aggregate):
    """The group's JSON objects as one text, commas between; null where all are empty."""

    output_field = TextField()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="GROUP_CONCAT(NULLIF(%(expressions)s, '{}'))", **context)

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        template = "STRING_AGG(NULLIF((%(expressions)s)::text, '{}'), ',')"
        return self.as_sql(compiler, connection, template=template, **context)


def merged_texts(text: str | None) -> dict[str, float]:
    """The counts of several JSON objects by their labels."""
    if not text:
        return {}
    merged, *others = _decode(f"[{text}]")
    for counts in others:
        for label, count in counts.items():
            merged[label] = merged.get(label, 0) + count
    return merged
