"""Recorded traffic: stored as it is shipped, bounded by age and size, read as a file for the fleet simulator.

A chunk holds what one router recorded of one namespace and pool in a second, compressed: an insert a second, not one a
request, and nobody's file needs anybody else's rows to be read.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from django.db.models import Count, Max, Min, QuerySet, Sum

from controlplane.telemetry.models import RecordedChunk
from controlplane.telemetry.recorded_file import write_file
from controlplane.telemetry.windows import Scope
from router.contract.recorded import RecordedRequest
from router.contract.telemetry import Shipment

KEPT_FOR = timedelta(days=2)
BYTES_MAX = 1024**3
"""Of compressed chunks: the oldest go first. One router that records all it may takes about a third of it a day."""
DELETED_MAX = 20_000
"""Rows in one go; the next goes on."""
LIMIT = 100_000
"""Requests in a file, unless more are asked for."""
CHUNK_BYTES_MAX = 8 * 1024 * 1024
"""Of what a chunk holds unpacked."""
_READ_AT_ONCE = 200

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[RecordedRequest])


@dataclass(frozen=True, slots=True)
class Extent:
    """What is recorded in a scope."""

    requests: int
    since: datetime | None
    until: datetime | None
    routers: int
    dropped: int
    """Requests of recorded sessions that are missing."""


def store_recorded(shipments: Sequence[Shipment]) -> None:
    """A shipment sink: inside the ingest transaction."""
    rows = [chunk for shipment in shipments for chunk in _chunks(shipment)]
    if rows:
        RecordedChunk.objects.bulk_create(rows)


def recorded_extent(scope: Scope) -> Extent:
    """Of requests that finished in the scope's span. One query."""
    sums: dict[str, Any] = _chunks_of(scope).aggregate(
        all=Sum("requests"), since=Min("start"), until=Max("start"), routers=Count("source", distinct=True),
        lost=Sum("dropped"),
    )  # fmt: skip
    return Extent(sums["all"] or 0, sums["since"], sums["until"], sums["routers"], sums["lost"] or 0)


def write_recorded(scope: Scope, path: Path, *, limit: int = LIMIT) -> int:
    """The newest `limit` requests of the scope, by time, as a recording's file. How many were written."""
    with closing(_newest_first(scope)) as requests:
        taken = [request for request, _ in zip(requests, range(limit), strict=False)]
    taken.sort(key=lambda request: request.at)
    if taken:
        write_file(path, taken, scope=scope, extent=recorded_extent(scope))
    return len(taken)


def expire_recorded(*, now: datetime) -> int:
    """Deletes chunks past their age, then the oldest beyond the size. How many."""
    old = RecordedChunk.objects.filter(start__lt=now - KEPT_FOR).values_list("pk", flat=True)
    doomed = list(old[:DELETED_MAX])
    size = RecordedChunk.objects.exclude(pk__in=old).aggregate(all=Sum("size_bytes"))["all"] or 0
    if len(doomed) < DELETED_MAX and size > BYTES_MAX:
        rows = RecordedChunk.objects.exclude(pk__in=old).order_by("start", "pk")
        for pk, size_bytes in rows.values_list("pk", "size_bytes")[: DELETED_MAX - len(doomed)]:
            doomed.append(pk)
            size -= size_bytes
            if size <= BYTES_MAX:
                break
    for first in range(0, len(doomed), 500):
        RecordedChunk.objects.filter(pk__in=doomed[first : first + 500]).delete()
    return len(doomed)


def _chunks(shipment: Shipment) -> Iterator[RecordedChunk]:
    of: dict[tuple[str, str, str], list[RecordedRequest]] = {}
    for request in shipment.recorded:
        of.setdefault((request.tenant, request.namespace, request.pool), []).append(request)
    dropped = shipment.recorded_dropped
    for (tenant, namespace, pool), requests in of.items():
        data = zlib.compress(_encoder.encode(requests), 1)
        yield RecordedChunk(
            start=datetime.fromtimestamp(shipment.at, UTC), source=shipment.source, tenant=tenant,
            namespace=namespace, pool=pool, requests=len(requests), dropped=dropped, size_bytes=len(data), data=data,
        )  # fmt: skip
        dropped = 0


def _chunks_of(scope: Scope) -> QuerySet[RecordedChunk]:
    named = {"tenant": scope.tenant, "namespace": scope.namespace, "pool": scope.pool}
    wanted = {name: value for name, value in named.items() if value}
    return RecordedChunk.objects.filter(start__gte=scope.from_, start__lt=scope.to, **wanted)


def _newest_first(scope: Scope) -> Generator[RecordedRequest]:
    rows = _chunks_of(scope).order_by("-start", "-pk").values_list("data", flat=True)
    for data in rows.iterator(chunk_size=_READ_AT_ONCE):
        for request in reversed(_requests(bytes(data))):
            if _is_of(request, scope):
                yield request


def _requests(data: bytes) -> list[RecordedRequest]:
    return _decoder.decode(zlib.decompressobj().decompress(data, CHUNK_BYTES_MAX))


def _is_of(request: RecordedRequest, scope: Scope) -> bool:
    return scope.model in ("", request.model) and scope.worker in ("", request.worker)
