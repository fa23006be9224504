"""Applies shipments: each (source, boot, seq) at most once, in the same transaction as the rows it adds to.

A crash between commit and acknowledgement brings the entries again; their seq is then not above the source's progress
and they are skipped. Cost: about a dozen statements a batch, whatever its size, and O(touched rows).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

import msgspec
from django.db import transaction

from controlplane.fleet.findings import Observation, observe
from controlplane.telemetry.breaks import add_breaks
from controlplane.telemetry.kv_status import store_kv_status
from controlplane.telemetry.merge import Contribution, Key, Values
from controlplane.telemetry.models import DecisionRecord, SourceProgress
from controlplane.telemetry.rollups import (
    EVICTION_TABLE,
    HEAT_TABLE,
    REQUEST_TABLE,
    SLICE_TABLE,
    WORKER_TABLE,
    add,
    lock_until_commit,
)
from controlplane.telemetry.shipment_check import (
    HISTOGRAMS,
    ShipmentRefused,
    closed_errors,
    closed_spills,
    read_shipment,
)
from controlplane.telemetry.shipment_sinks import hand_over
from controlplane.telemetry.slices import SLICE_FIELDS, slice_contributions
from controlplane.telemetry.tenant_totals import TENANT_TABLE, tenant_contributions
from router.contract.histogram import Buckets
from router.contract.telemetry import DecisionSample, KvRow, PrefixHeat, RequestRow, Shipment

INGEST_LOCK_ID = 0x54494445_00000004
_REQUEST_DIMS = ("tenant", "namespace", "pool", "worker", "model", "template")
_REQUEST_SUMS = tuple(
    name
    for name in RequestRow.__struct_fields__
    if name not in (*_REQUEST_DIMS, *HISTOGRAMS, *SLICE_FIELDS, "errors", "spills")
)

_dims_of: Callable[[RequestRow], Key] = attrgetter(*_REQUEST_DIMS)
_sums_of: Callable[[RequestRow], tuple[float, ...]] = attrgetter(*_REQUEST_SUMS)
_histograms_of: Callable[[RequestRow], tuple[Buckets, ...]] = attrgetter(*HISTOGRAMS)

_HEAT_FIELDS = (
    "head_tokens", "prompt_tokens", "hit_tokens", "queue_ms", "spills", "placed", "load", "homes", "holders",
)  # fmt: skip


@dataclass(slots=True)
class Applied:
    """What became of a batch."""

    applied: int = 0
    repeated: int = 0
    """Seen before: skipped."""
    refused: list[str] = field(default_factory=list)
    """Reasons, one for each refused entry."""
    lags_ms: list[float] = field(default_factory=list)
    """Of each applied shipment: from the end of its second to the application."""


def apply_entries(entries: Sequence[bytes], *, now: datetime) -> Applied:
    """Entries of the stream in their order. Raises only what the database raises: then nothing was applied."""
    result = Applied()
    shipments = []
    for entry in entries:
        try:
            shipments.append(read_shipment(entry, now_s=now.timestamp()))
        except ShipmentRefused as error:
            result.refused.append(str(error))
    with transaction.atomic():
        fresh = _advance_progress(shipments, now, result)
        _add_rows(fresh, now)
        hand_over(fresh)
        if result.refused:
            _note_refused(result.refused, now)
    result.applied = len(fresh)
    result.lags_ms = [max(0.0, (now.timestamp() - shipment.at - 1.0) * 1000) for shipment in fresh]
    return result


def _advance_progress(shipments: Sequence[Shipment], now: datetime, result: Applied) -> list[Shipment]:
    """The shipments not applied before, with every source's progress moved past them."""
    # A second ingester, whose predecessor's lock in Valkey ran out, waits here and then sees this one's progress.
    lock_until_commit(INGEST_LOCK_ID)
    rows = SourceProgress.objects.filter(source__in={shipment.source for shipment in shipments})
    progress = {(row.source, row.boot): row for row in rows}
    fresh, changed = [], {}
    for shipment in shipments:
        key = (shipment.source, shipment.boot)
        row = progress.get(key) or SourceProgress(source=shipment.source, boot=shipment.boot, last_seq=-1)
        if shipment.seq <= row.last_seq:
            result.repeated += 1
            continue
        _fill_progress(row, shipment, now)
        progress[key] = changed[key] = row
        fresh.append(shipment)
    SourceProgress.objects.bulk_create(
        [SourceProgress(**_progress_values(row)) for row in changed.values()],
        update_conflicts=True,
        unique_fields=["source", "boot"],
        update_fields=["last_seq", "last_at", "applied_at", "router_state"],
    )
    return fresh


def _fill_progress(row: SourceProgress, shipment: Shipment, now: datetime) -> None:
    at = datetime.fromtimestamp(shipment.at, UTC)
    row.last_seq = shipment.seq
    row.last_at = at if row.last_at is None else max(row.last_at, at)
    row.applied_at = now
    if shipment.router is not None:
        row.router_state = msgspec.to_builtins(shipment.router)


def _progress_values(row: SourceProgress) -> dict[str, Any]:
    return {name: getattr(row, name) for name in
            ("source", "boot", "last_seq", "last_at", "applied_at", "router_state")}  # fmt: skip


def _add_rows(shipments: Sequence[Shipment], now: datetime) -> None:
    now_s = now.timestamp()
    requests = [request_contribution(s.at, row) for s in shipments for row in s.requests]
    # An idle router adds zeros to the row without dimensions: so an idle bucket differs from a gap.
    requests += [request_contribution(s.at, RequestRow()) for s in shipments if s.router is not None]
    add(REQUEST_TABLE, requests, now_s=now_s)
    add(TENANT_TABLE, tenant_contributions(requests), now_s=now_s)
    add(SLICE_TABLE, slice_contributions(shipments), now_s=now_s)
    kv = [(shipment.at, row) for shipment in shipments for row in shipment.kv]
    add(WORKER_TABLE, [kv_contribution(at, row) for at, row in kv], now_s=now_s)
    add(EVICTION_TABLE, [eviction_contribution(at, row) for at, row in kv if heard(row)], now_s=now_s)
    add(HEAT_TABLE, [heat_contribution(s.at, row) for s in shipments for row in s.heat], now_s=now_s)
    add_breaks([(s.at, row) for s in shipments for row in s.breaks])
    DecisionRecord.objects.bulk_create(
        [_decision(sample) for shipment in shipments for sample in shipment.decisions], ignore_conflicts=True
    )
    store_kv_status(kv, now=now)


def request_contribution(at_s: float, row: RequestRow) -> Contribution:
    values: Values = {name: value for name, value in zip(_REQUEST_SUMS, _sums_of(row), strict=True) if value}
    for name, buckets in zip(HISTOGRAMS, _histograms_of(row), strict=True):
        if buckets:
            values[name] = _text_keys(buckets)
    if row.errors:
        values["errors"] = closed_errors(row)
    if row.spills:
        values["spills"] = closed_spills(row)
    return Contribution(at_s, _dims_of(row), values)


def _text_keys(buckets: Mapping[int, int]) -> dict[str, int]:
    """JSON objects have text keys; the rollups keep them so."""
    return {str(index): count for index, count in buckets.items()}


def kv_contribution(at_s: float, row: KvRow) -> Contribution:
    """A second in which the count cannot be trusted still counts its events."""
    values: Values = {
        "kv_samples": 1,
        "stored_blocks": row.stored_blocks,
        "removed_blocks": row.removed_blocks,
        "restored_blocks": row.restored_blocks,
        "cleared": row.cleared,
        "event_gaps": row.gaps,
        "resident_blocks": row.resident_blocks,
    }
    if not heard(row):
        # Nothing was heard: churn is unknown, not zero.
        values = {"resident_blocks": None, "event_gaps": row.gaps}
    return Contribution(at_s=at_s, dims=(row.worker,), values=values)


def heard(row: KvRow) -> bool:
    return row.state not in ("down", "silent")


def eviction_contribution(at_s: float, row: KvRow) -> Contribution:
    values: Values = {"seconds": 1, "evicted": row.evicted, "restored_of": row.restored_of}
    values |= {"lifetime": _text_keys(row.lifetime), "restore_gap": _text_keys(row.restore_gap)}
    return Contribution(at_s=at_s, dims=(row.worker.partition("/")[0],), values=values)


def heat_contribution(at_s: float, row: PrefixHeat) -> Contribution:
    values: Values = {name: getattr(row, name) for name in _HEAT_FIELDS if getattr(row, name)}
    values |= {"requests": sum(row.by_worker.values()), "by_worker": row.by_worker, "tokens": row.tokens}
    return Contribution(at_s=at_s, dims=(row.namespace, row.pool, row.prefix), values=values)


def _decision(sample: DecisionSample) -> DecisionRecord:
    return DecisionRecord(
        request_id=sample.request_id,
        at=datetime.fromtimestamp(sample.at, UTC),
        tenant=sample.tenant,
        namespace=sample.namespace,
        pool=sample.pool,
        worker=sample.worker,
        outcome=sample.outcome,
        reason=sample.reason,
        ttft_ms=sample.ttft_ms,
        model=sample.model,
        predicted_hit_tokens=sample.predicted_hit_tokens,
        cached_tokens=sample.cached_tokens,
        detail=msgspec.to_builtins(sample),
    )


def _note_refused(reasons: Sequence[str], now: datetime) -> None:
    message = f"{len(reasons)} shipments were refused, the last because: {reasons[-1]}. Their seconds are missing."
    observe([Observation("shipment_rejected", "telemetry", message)], at=now)
