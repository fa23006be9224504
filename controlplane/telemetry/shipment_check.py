"""Decodes and checks a shipment before anything of it is applied: a bad one is refused whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, get_origin

import msgspec

from controlplane.telemetry.recorded_check import fault_of
from router.contract.cohorts import KEY_MAX
from router.contract.histogram import INDEX_MAX, INDEX_MIN
from router.contract.telemetry import (
    ERROR_KINDS,
    ROUTING_LOSSES,
    SHIPMENT_BYTES_MAX,
    SPILL_REASONS,
    KvRow,
    RequestRow,
    Shipment,
    decode_shipment,
)

ROWS_MAX = 5_000
"""Of each kind in one shipment."""
COUNT_MAX = 10**15
"""Above any real count or token sum of a second; sums of years still fit 64 bits."""
AHEAD_S_MAX = 300.0
"""A sender's clock may run ahead by less than this."""
BEHIND_S_MAX = 7 * 86_400.0
"""Older telemetry than the minute rows' retention is refused."""

HISTOGRAMS = ("ttft_hit", "ttft_partial", "ttft_miss", "ttft_unknown", "duration", "decision_us")
_REQUEST_HISTOGRAMS = (*HISTOGRAMS, "hit_size")
KV_HISTOGRAMS = ("lifetime", "restore_gap")
_LENGTHS = {"tenant": 48, "namespace": 100, "pool": 48, "worker": 100, "model": 200, "template": 64, "prefix": 32,
            "request_id": 64, "reason": 30, "outcome": 30, "source": 100, "boot": 64, "state": 20,
            "owners": 201, "evidence": 32, "kind": 10}  # fmt: skip


class ShipmentRefused(ValueError):
    """Why; holds no content of the shipment but field names."""


def read_shipment(data: bytes, *, now_s: float) -> Shipment:
    """Raises ShipmentRefused."""
    if len(data) > SHIPMENT_BYTES_MAX:
        raise ShipmentRefused(f"larger than {SHIPMENT_BYTES_MAX} bytes")
    try:
        shipment = decode_shipment(data)
    except msgspec.DecodeError as error:
        # The decoder's message may quote content: only its kind is passed on.
        raise ShipmentRefused(f"not a shipment ({type(error).__name__})") from None
    _check(shipment, now_s)
    return shipment


def _check(shipment: Shipment, now_s: float) -> None:
    if not -BEHIND_S_MAX <= shipment.at - now_s <= AHEAD_S_MAX:
        raise ShipmentRefused("its time is too far from this clock")
    if not shipment.source or not shipment.boot or not 0 <= shipment.seq <= COUNT_MAX:
        raise ShipmentRefused("source, boot or seq is missing")
    rows: Sequence[Sequence[msgspec.Struct]] = (
        [shipment], shipment.requests, shipment.violations, shipment.decisions, shipment.heat, shipment.kv,
        shipment.breaks, shipment.recorded,
    )  # fmt: skip
    if any(len(kind) > ROWS_MAX for kind in rows):
        raise ShipmentRefused(f"more than {ROWS_MAX} rows of one kind")
    for kind in rows:
        for row in kind:
            _check_fields(row)
    for request in shipment.requests:
        _check_request(request)
    for kv in shipment.kv:
        _check_kv(kv)
    if fault := fault_of(shipment.recorded, at=shipment.at):
        raise ShipmentRefused(fault)


@dataclass(frozen=True, slots=True)
class _Fields:
    """A struct's fields by how they are checked. All of a kind are taken at once: rows come by the thousand."""

    texts: tuple[str, ...]
    numbers: tuple[str, ...]
    counts: tuple[str, ...]
    others: tuple[str, ...]
    """Lists, and numbers that may be missing."""


@lru_cache
def _fields_of(kind: type[msgspec.Struct]) -> _Fields:
    types = {field.name: field.type for field in msgspec.structs.fields(kind)}
    return _Fields(
        texts=tuple(name for name, type_ in types.items() if type_ is str),
        numbers=tuple(name for name, type_ in types.items() if type_ in (int, float)),
        counts=tuple(name for name, type_ in types.items() if get_origin(type_) is dict),
        others=tuple(
            name for name, type_ in types.items()
            if type_ not in (str, int, float) and get_origin(type_) is not dict
        ),
    )  # fmt: skip


@lru_cache
def _getter(names: tuple[str, ...]) -> Callable[[object], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda row: tuple(getattr(row, name) for name in names)


def _check_fields(row: msgspec.Struct) -> None:
    fields = _fields_of(type(row))
    for name, text in zip(fields.texts, _getter(fields.texts)(row), strict=True):
        _check_text(name, text)
    numbers = _getter(fields.numbers)(row)
    if not _in_range(numbers):
        for name, value in zip(fields.numbers, numbers, strict=True):
            _check_number(name, value)
    for name, counts in zip(fields.counts, _getter(fields.counts)(row), strict=True):
        if counts:
            _check_counts(name, counts)
    for name in fields.others:
        value = getattr(row, name)
        if isinstance(value, (int, float)):
            _check_number(name, value)
        elif isinstance(value, list) and value and isinstance(value[0], str):
            _check_names(name, value)


def _in_range(numbers: Collection[float]) -> bool:
    """Whether each is finite and 0…COUNT_MAX. The sum shows what is not a number, which least and most may pass by."""
    return not numbers or (min(numbers) >= 0 and max(numbers) <= COUNT_MAX and math.isfinite(sum(numbers)))


def _check_text(name: str, value: str) -> None:
    # A NUL cannot be stored by PostgreSQL; a lone surrogate cannot be encoded at all.
    if len(value) > _LENGTHS.get(name, 2_000) or "\0" in value:
        raise ShipmentRefused(f"{name} is too long or not text")


def _check_number(name: str, value: float) -> None:
    if not (math.isfinite(value) and 0 <= value <= COUNT_MAX):
        raise ShipmentRefused(f"{name} is out of range")


def _check_counts(name: str, counts: Mapping[Any, Any]) -> None:
    if len(counts) > ROWS_MAX:
        raise ShipmentRefused(f"{name} has too many entries")
    values = counts.values()
    if isinstance(next(iter(values)), (int, float)) and not _in_range(values):
        raise ShipmentRefused(f"{name} is out of range")


def _check_names(name: str, values: Sequence[str]) -> None:
    if len(values) > ROWS_MAX:
        raise ShipmentRefused(f"{name} has too many entries")
    for value in values:
        _check_text("worker", value)


def _check_request(row: RequestRow) -> None:
    if row.cohorts and not (min(row.cohorts) >= 0 and max(row.cohorts) <= KEY_MAX):
        raise ShipmentRefused("cohorts has a key outside the cohorts")
    for name, buckets in zip(_REQUEST_HISTOGRAMS, _getter(_REQUEST_HISTOGRAMS)(row), strict=True):
        if buckets and not (min(buckets) >= INDEX_MIN and max(buckets) <= INDEX_MAX):
            raise ShipmentRefused(f"{name} has a bucket outside the histogram")


def _check_kv(row: KvRow) -> None:
    if not row.worker:
        raise ShipmentRefused("a KV row without worker")
    for name in KV_HISTOGRAMS:
        if any(not INDEX_MIN <= index <= INDEX_MAX for index in getattr(row, name)):
            raise ShipmentRefused(f"{name} has a bucket outside the histogram")
    for label in (*row.evicted, *row.restored_of):
        _check_text("owners", label)


def closed(counts: Mapping[str, int], names: Iterable[str]) -> dict[str, int]:
    """`counts` with names outside the closed set under `other`."""
    if not counts:
        return {}
    known = frozenset(names)
    result: dict[str, int] = {}
    for name, count in counts.items():
        label = name if name in known else "other"
        result[label] = result.get(label, 0) + count
    return result


def closed_errors(row: RequestRow) -> dict[str, int]:
    return closed(row.errors, ERROR_KINDS)


def closed_losses(row: RequestRow) -> dict[str, int]:
    return closed(row.routing_loss, ROUTING_LOSSES)


def closed_spills(row: RequestRow) -> dict[str, int]:
    return closed(row.spills, SPILL_REASONS)
