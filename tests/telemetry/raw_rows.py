"""Rollup rows of many shapes, and what plain Python makes of them: `python -m tests.telemetry.raw_rows` compares."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import django

if __name__ == "__main__":
    django.setup()

from django.core.management import call_command
from django.db import connection

from controlplane.telemetry.available import reach_series
from controlplane.telemetry.bucket_reading import read_buckets
from controlplane.telemetry.cohorts import _summed
from controlplane.telemetry.evictions import evictions
from controlplane.telemetry.heat import heat_grid, worker_cells
from controlplane.telemetry.merge import EVICTIONS, REQUESTS, SLICES, WORKER_TOTALS, Shape, merge_into
from controlplane.telemetry.models import (
    EvictionRollup,
    RequestRollup,
    RequestTotal,
    SliceRollup,
    WorkerRollup,
    WorkerTotal,
)
from controlplane.telemetry.rollup_rows import read_requests
from controlplane.telemetry.slices import slice_of
from controlplane.telemetry.tenant_use import use_by_namespace
from controlplane.telemetry.tiles import tile_segments
from controlplane.telemetry.windows import (
    SLICE_RETENTION_S,
    WIDTHS_S,
    Scope,
    Segment,
    aligned_pair,
    cover,
    floor_to,
    grid_of,
)
from controlplane.telemetry.worker_sums import worker_sums

NOW = datetime(2026, 5, 17, 13, 30, 7, tzinfo=UTC)
MINUTES = (15, 60, 360, 7 * 24 * 60)
SCOPES: tuple[dict[str, str], ...] = (
    {}, {"pool": "p"}, {"model": "m1"}, {"tenant": "t1"}, {"namespace": "t1/n1"}, {"worker": "p/w1"},
)  # fmt: skip
FIELDS = ("requests", "prompt_tokens", "hit_tokens", "saved_prefill_ms", "errors", "ttft_hit", "ttft_miss")


def scopes() -> Iterable[Scope]:
    return (Scope(NOW - timedelta(minutes=minutes), NOW, **dims) for minutes in MINUTES for dims in SCOPES)


def fill(chance: random.Random) -> None:
    rows: list[Any] = []
    for width_s in sorted({*WIDTHS_S, *SLICE_RETENTION_S}):
        for start in _starts(chance, width_s):
            at = {"width_s": width_s, "start": start}
            if width_s in WIDTHS_S:
                rows += [*_requests(chance, at), *_workers(chance, at)]
            if width_s in SLICE_RETENTION_S:
                rows += _slices(chance, at)
    for model in {type(row) for row in rows}:
        model._default_manager.bulk_create([row for row in rows if type(row) is model])


def _starts(chance: random.Random, width_s: int) -> list[datetime]:
    """Half of them within the newest, half over a fortnight: the others are gaps."""
    last = floor_to(NOW, width_s)
    span = 14 * 86_400 // width_s
    places = {*chance.sample(range(min(40, span)), 12), *chance.sample(range(span), 12)}
    return [last - timedelta(seconds=width_s * place) for place in sorted(places)]


def _requests(chance: random.Random, at: dict[str, Any]) -> Iterable[Any]:
    yield RequestTotal(**at)
    for number in range(chance.randint(0, 5)):
        values = {name: chance.randint(0, 2**40) for name in ("requests", "prompt_tokens", "hit_tokens", "slo_met")}
        values |= {"saved_prefill_ms": chance.random() * 1e6, "errors": _counts(chance, ("no_worker", "interrupted"))}
        values |= {name: _counts(chance, ("-150", "90", "130")) for name in ("ttft_hit", "ttft_miss")}
        pool, tenant = "pq"[number % 2], f"t{number % 2}"
        yield RequestTotal(**at, pool=pool, model=f"m{number}", **values)
        for namespace in (f"{tenant}/n1", f"{tenant}/n2"):
            named = {"tenant": tenant, "namespace": namespace, "worker": f"{pool}/w{number}", "model": f"m{number}"}
            yield RequestRollup(**at, pool=pool, **named, **values)


def _workers(chance: random.Random, at: dict[str, Any]) -> Iterable[Any]:
    for pool in chance.sample("pqr", chance.randint(0, 3)):
        polled = chance.randint(0, 2)
        values = {"delta_samples": polled, "kv_use_samples": polled, "kv_use_max": chance.random() if polled else 0}
        told = _counts(chance, ("local_compute", "local_cache_hit")) if polled else {}
        heard = {"kv_samples": chance.randint(0, 1), "stored_per_min": 7.5, "event_gaps": 1}
        yield WorkerTotal(**at, pool=pool, **values, **heard, prompt_tokens_by_source=told)
        evicted, lifetime = _counts(chance, ("a>b", "b>b")), _counts(chance, ("100", "200"))
        yield EvictionRollup(**at, pool=pool, seconds=3, evicted=evicted, lifetime=lifetime)
        for number in range(12):
            use = {"kv_use_sum": chance.random() * polled, "kv_use_samples": polled}
            yield WorkerRollup(**at, worker=f"{pool}/w{number}", **use)


def _slices(chance: random.Random, at: dict[str, Any]) -> Iterable[Any]:
    yield SliceRollup(**at, slice="router", name="r1")
    of = (("router", "r1", ""), ("router", "r2", ""), ("namespace", "t1/n1", "t1"), ("worker", "p/w1", ""))
    for kind, name, tenant in of:
        for model in ("m1", "m2"):
            values = {each: chance.randint(0, 2**40) for each in ("requests", "prompt_tokens", "hit_tokens")}
            counts = {"hit_size": _counts(chance, ("90", "130")), "cohorts": _counts(chance, ("100", "250", "1200"))}
            names = {"slice": kind, "name": name, "tenant": tenant, "pool": "p", "model": model}
            yield SliceRollup(**at, **names, **values, **counts)


def _counts(chance: random.Random, labels: tuple[str, ...]) -> dict[str, int]:
    return {label: chance.randint(1, 2**33) for label in chance.sample(labels, chance.randint(0, len(labels)))}


def summed(rows: Iterable[dict[str, Any]], dims: tuple[str, ...], shape: Shape) -> dict[Any, dict[str, Any]]:
    """Plain Python over raw rows."""
    totals: dict[Any, dict[str, Any]] = {}
    for row in rows:
        merge_into(shape, totals.setdefault(tuple(row[name] for name in dims), {}), row)
    return totals


def check() -> None:
    """Raises AssertionError where a reading is not the plain sum of its raw rows."""
    _raw.clear()
    for scope in scopes():
        _check_requests(scope)
        _check_namespaces(scope)
        _check_reach(scope)
        _check_workers(scope)
        _check_cohorts(scope)
        _check_evictions(scope)


def _check_requests(scope: Scope) -> None:

    segments = tile_segments(scope, now=NOW)
    found = []
    for read in (read_requests, read_buckets):
        rows = [{"width_s": w, "start": start} | values for w, start, values in read(scope, segments, FIELDS).rows]
        found.append(summed(rows, ("width_s", "start"), REQUESTS))
    assert found[0]
    _agree(*found)


def _check_namespaces(scope: Scope) -> None:

    span, _ = aligned_pair(scope, now=NOW)
    rows = _within(RequestRollup, cover(span, now=NOW))
    for name in ("pool", "model", "tenant", "namespace", "worker"):
        rows = [row for row in rows if getattr(scope, name) in ("", row[name])]
    plain = summed(rows, ("namespace",), REQUESTS)
    uses = use_by_namespace(scope, now=NOW)
    assert uses.keys() == {name for (name,) in plain}
    for (name,), values in plain.items():
        told = {"requests": uses[name].requests, "hit_tokens": uses[name].hit_tokens, "errors": uses[name].errors}
        _agree(told, {each: values.get(each, {}) for each in told})


def _check_reach(scope: Scope) -> None:

    grid = grid_of(scope, now=NOW, kept=SLICE_RETENTION_S)
    rows = _within(SliceRollup, [grid.segment])
    wanted = slice_of(scope)
    told = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    heard = {grid.index_of(row["start"]) for row in rows if row["slice"] == "router"}
    series = reach_series(scope, now=NOW)
    for place in range(grid.count):
        mine = [row for row in told if grid.index_of(row["start"]) == place]
        tokens = float(sum(row["hit_tokens"] for row in mine))
        assert series.hit_tokens[place] == (tokens if place in heard else None), place


def _check_workers(scope: Scope) -> None:

    if scope.worker:
        return
    grid = heat_grid(scope, now=NOW)
    totals = [row for row in _within(WorkerTotal, [grid.segment]) if scope.pool in ("", row["pool"])]
    plain = summed(totals, ("start",), WORKER_TOTALS)
    found = {start: sums for _, start, sums in worker_sums(scope, [grid.segment])}
    assert found.keys() == {start for (start,) in plain}
    for (start,), values in plain.items():
        assert found[start]["kv_use"] == (values["kv_use_max"] if values["kv_use_samples"] else None)
        assert found[start]["gaps"] == (values["event_gaps"] if values["kv_samples"] else None)
        computed = values.get("prompt_tokens_by_source", {}).get("local_compute")
        assert found[start]["source_local_compute"] == (computed if values["delta_samples"] else None)
    sums: dict[tuple[str, int], list[float]] = {}
    for row in _within(WorkerRollup, [grid.segment]):
        cell = sums.setdefault((row["worker"], grid.index_of(row["start"]) or 0), [0.0, 0.0])
        cell[0] += row["kv_use_sum"]
        cell[1] += row["kv_use_samples"]
    for worker, cells in worker_cells(scope, grid, "kv_use", ()).items():
        for place, value in enumerate(cells):
            used, samples = sums.get((worker, place), (0.0, 0.0))
            _agree(value, used / samples if samples else None)


def _check_cohorts(scope: Scope) -> None:

    wanted = slice_of(scope)
    rows = _within(SliceRollup, cover(scope, now=NOW, kept=SLICE_RETENTION_S))
    rows = [row for row in rows if row["pool"] and all(row[name] == value for name, value in wanted.items())]
    plain = {model: values.get("cohorts", {}) for (model,), values in summed(rows, ("model",), SLICES).items()}
    found = {(model, str(key)): count for model, key, count in _summed(wanted, scope, NOW, exact=True)}
    assert found == {(model, key): count for model, counts in plain.items() for key, count in counts.items()}


def _check_evictions(scope: Scope) -> None:
    if scope.worker:
        return
    span, _ = aligned_pair(scope, now=NOW)
    rows = [row for row in _within(EvictionRollup, cover(span, now=NOW)) if scope.pool in ("", row["pool"])]
    plain = summed(rows, (), EVICTIONS).get((), {})
    found = evictions(scope, now=NOW, prices={})
    assert found.heard_s == plain.get("seconds", 0)
    assert {f"{a}>{b}": n for (a, b), n in found.evicted.items()} == plain.get("evicted", {})
    assert {str(at): n for at, n in found.lifetime.items()} == plain.get("lifetime", {})


_raw: dict[type[Any], list[dict[str, Any]]] = {}
"""Every row of a table, read once."""


def _within(model: type[Any], segments: list[Segment]) -> list[dict[str, Any]]:
    if model not in _raw:
        _raw[model] = list(model._default_manager.values())
    return [
        row
        for row in _raw[model]
        if any(part.width_s == row["width_s"] and part.from_ <= row["start"] < part.to for part in segments)
    ]


def _agree(found: Any, wanted: Any) -> None:
    """Whole numbers exactly, others but for the order in which they were added."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), (found, wanted)
        for key in wanted:
            _agree(found[key], wanted[key])
    elif isinstance(wanted, float):
        assert found is not None and math.isclose(found, wanted, rel_tol=1e-9), (found, wanted)
    else:
        assert found == wanted, (found, wanted)


def main() -> None:
    """On the database that the settings name."""
    call_command("migrate", verbosity=0)
    fill(random.Random(11))
    check()
    print(f"{connection.vendor}: all agree")


if __name__ == "__main__":
    main()
