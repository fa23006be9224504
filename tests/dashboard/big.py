"""A large fleet with a past as long as retention keeps it, made by the database itself.

Rows are written by `INSERT … SELECT` over small tables of buckets and names: a million takes some seconds. Figures
are smooth functions of time and name, so that charts are not empty and no two workers alike; nothing is random.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib import import_module

import msgspec
from django.apps import apps
from django.db import connection, models, transaction

from controlplane.fleet.models import Finding, PoolModel, Worker, WorkerPool, WorkerStatus
from controlplane.isolation.models import IsolationViolation
from controlplane.namespaces.models import ApiKey, CacheNamespace
from controlplane.policies.models import WatermarkPolicy
from controlplane.snapshots.models import PublishedSnapshot, RouterStatus
from controlplane.telemetry.models import (
    DecisionRecord,
    EvictionRollup,
    PrefixHeatRollup,
    RequestRollup,
    RequestTotal,
    SourceProgress,
    WorkerRollup,
    WorkerTotal,
)
from controlplane.telemetry.windows import RETENTION_S, WIDTHS_S, floor_to
from controlplane.tenants.models import Tenant
from router.contract.telemetry import Candidate, DecisionSample
from tests.dashboard import big_slices, story

POOLS = 4
ROUTERS = 4
ACTIVE = {10: 60, 60: 120, 3600: 1000}
"""Namespaces with traffic in one bucket of each width."""


@dataclass(frozen=True)
class Size:
    tenants: int = 1000
    namespaces: int = 5
    """Of each tenant."""
    workers: int = 200
    days: float = 7.0
    decisions: int = 5000


SMALL = Size(tenants=12, namespaces=2, workers=12, days=0.2, decisions=60)
"""The same shape, for tests of what is shown."""


def fill(size: Size = Size(), *, now: datetime | None = None) -> None:
    now = now or story.utc_now()
    with transaction.atomic():
        _make_tenants(size)
        _make_workers(size, now)
        _make_routers(now)
        _make_happenings(size, now)
        _make_rollups(size, now)
    with connection.cursor() as cursor:
        # What a database does by itself after a while: without it the planner knows nothing of a fresh table.
        cursor.execute("ANALYZE")


def worker_ids(size: Size) -> list[str]:
    return [f"p{number % POOLS}/w{number:03d}" for number in range(size.workers)]


def _make_tenants(size: Size) -> None:
    owners = Tenant.objects.bulk_create(
        [Tenant(slug=f"t{n:04d}", name=f"Tenant {n}", prefill_tokens_per_s=50_000) for n in range(size.tenants)]
    )
    spaces = CacheNamespace.objects.bulk_create(
        [
            CacheNamespace(tenant=owner, slug=f"n{n}", ttft_slo_ms=1500)
            for owner in owners
            for n in range(size.namespaces)
        ]
    )
    ApiKey.objects.bulk_create(
        ApiKey(namespace=space, key_id=f"{n:012d}", secret_hash=f"{n:064x}", name="app", created_by="user:big")
        for n, space in enumerate(spaces)
    )
    WatermarkPolicy.objects.get_or_create(scope="global", defaults={"low": 0.65, "high": 0.85})
    WatermarkPolicy.objects.bulk_create(WatermarkPolicy(scope="namespace", namespace=space) for space in spaces[::50])


def _make_workers(size: Size, now: datetime) -> None:
    pools = WorkerPool.objects.bulk_create([WorkerPool(slug=f"p{n}", prefill_tokens_per_s=9000) for n in range(POOLS)])
    PoolModel.objects.bulk_create(PoolModel(pool=pool, name=f"m-{pool.slug}") for pool in pools)
    workers = Worker.objects.bulk_create(
        [
            Worker(
                pool=pools[number % POOLS], slug=f"w{number:03d}",
                url=f"http://10.0.{number // 250}.{number % 250 + 1}",
                kv_events_endpoint=f"tcp://10.0.{number // 250}.{number % 250 + 1}:5557",
                facts={"block_size": 16, "kv_blocks": 9600, "version": "0.21.0", "prefix_caching": True},
                state=Worker.State.DRAIN if number % 50 == 7 else Worker.State.READY,
            )
            for number in range(size.workers)
        ]
    )  # fmt: skip
    WorkerStatus.objects.bulk_create(
        WorkerStatus(
            worker=worker, polled_at=now, ok_at=now, scrape_ms=6.0,
            reading={"running": number % 9, "waiting": number % 3, "kv_use": 0.2 + number % 70 / 100},
            kv_at=now, kv={"resident_blocks": 7000, "removed_blocks": 3, "state": "live"},
            consecutive_failures=5 if number % 97 == 11 else 0,
        )
        for number, worker in enumerate(workers)
    )  # fmt: skip


def _make_routers(now: datetime) -> None:
    PublishedSnapshot.objects.create(
        version=12, epoch=1, created_at=now, digest="0" * 64, document="{}", through_audit_id=0
    )
    state = {
        "snapshot_version": 12,
        "snapshot_age_s": 3.0,
        "inflight": 9,
        "index_blocks": 41_000,
        "index_bytes": 9_000_000,
    }
    for name in (*(f"router-{number}" for number in range(ROUTERS)), "kv-events"):
        SourceProgress.objects.create(
            source=name, boot="b", last_seq=1, last_at=now, applied_at=now,
            router_state=None if name == "kv-events" else state,
        )  # fmt: skip
        if name != "kv-events":
            RouterStatus.objects.create(router_id=name, boot="b", snapshot_version=12, inflight=9, seen_at=now)


def _make_happenings(size: Size, now: datetime) -> None:
    """Sampled decisions, violations and findings, spread over the last three days at most."""
    workers, spaces = worker_ids(size), list(_spaces(size))
    step = timedelta(days=min(3.0, size.days)) / size.decisions
    DecisionRecord.objects.bulk_create(
        (
            DecisionRecord(
                request_id=f"req-{n:08x}", at=now - step * n, tenant=spaces[n % len(spaces)][0],
                namespace=spaces[n % len(spaces)][1], pool=workers[n % size.workers].split("/")[0],
                worker=workers[n % size.workers], outcome="ok" if n % 20 else "upstream_error", reason="prefix",
                ttft_ms=100 + n % 700,
                detail=_decision(n, now - step * n, workers[n % size.workers], spaces[n % len(spaces)]),
            )
            for n in range(size.decisions)
        ),
        batch_size=500,
    )  # fmt: skip
    IsolationViolation.objects.bulk_create(
        IsolationViolation(
            at=now - timedelta(hours=n), request_id=f"vio-{n:08x}", tenant=spaces[n][0], namespace=spaces[n][1],
            pool="p0", worker=workers[n % size.workers], model="m-p0", prompt_tokens=4096, cached_tokens=2048,
            bound_tokens=512,
        )
        for n in range(min(120, len(spaces)))
    )  # fmt: skip
    Finding.objects.bulk_create(
        Finding(
            kind="kv_event_gap", subject=worker, message=f"3 KV event messages of {worker} are lost.",
            first_seen=now - timedelta(minutes=30), last_seen=now,
        )
        for worker in workers[::9]
    )  # fmt: skip


def _decision(n: int, at: datetime, worker: str, space: tuple[str, str]) -> dict[str, object]:
    """As a router ships it."""
    pool = worker.split("/")[0]
    chosen = Candidate(worker=worker, matched_tokens=3072, saved_ms=341.0, queue_ms=42.0, net_ms=299.0)
    sample = DecisionSample(
        at=at.timestamp(), request_id=f"req-{n:08x}", tenant=space[0], namespace=space[1], pool=pool,
        model=f"m-{pool}", policy_version=12, worker=worker, reason="prefix", candidates=[chosen], prompt_tokens=4100,
        predicted_hit_tokens=3072, cached_tokens=3056, ttft_ms=100.0 + n % 700, duration_ms=2200.0, decision_us=38.0,
        outcome="ok", sentence=f"{worker}: saves 341 ms of prefill for 42 ms of queue.",
    )  # fmt: skip
    return dict(msgspec.to_builtins(sample))


def _spaces(size: Size) -> Iterator[tuple[str, str]]:
    for tenant in range(size.tenants):
        for name in range(size.namespaces):
            yield f"t{tenant:04d}", f"t{tenant:04d}/n{name}"


def _make_rollups(size: Size, now: datetime) -> None:
    with connection.cursor() as cursor:
        _make_helpers(cursor, size, now)
        count = size.tenants * size.namespaces
        # `b.n` counts the buckets of a width and `s.n` the namespaces: each bucket has another part of them.
        for width_s, active in ACTIVE.items():
            stride = max(1, count // active)
            here = f"big_buckets b CROSS JOIN big_spaces s WHERE b.width_s = {width_s}"
            _insert(cursor, RequestRollup, _REQUESTS | _OF_NAMESPACE, f"{here} AND (s.n + b.n * 7) % {stride} = 0")
            _insert(cursor, PrefixHeatRollup, _HEAT, f"{here} AND s.n < 40")
        _insert(cursor, RequestTotal, _BUCKET, "big_buckets b")  # routers reported
        _insert(cursor, RequestTotal, _REQUESTS | _OF_POOL, "big_buckets b CROSS JOIN big_pools s")
        _insert(cursor, WorkerRollup, _OF_WORKER, "big_buckets b CROSS JOIN big_workers s")
        _insert(cursor, WorkerTotal, _OF_WORKERS, "big_buckets b CROSS JOIN big_pools s")
        _insert(cursor, EvictionRollup, _EVICTIONS, "big_buckets b CROSS JOIN big_pools s")
        big_slices.fill(cursor, _insert, routers=ROUTERS, spaces=count, days=size.days, now=now)
        for name in ("buckets", "spaces", "workers", "pools"):
            cursor.execute(f"DROP TABLE big_{name}")
    import_module("controlplane.telemetry.migrations.0012_tenant_totals").sum_up(apps, None)


def _make_helpers(cursor, size: Size, now: datetime) -> None:
    workers = worker_ids(size)
    spaces = [
        (n, tenant, name, f"p{n % POOLS}", workers[n % size.workers], f"m-p{n % POOLS}")
        for n, (tenant, name) in enumerate(_spaces(size))
    ]
    tables = {
        "buckets": ("n integer, width_s integer, start_at {time}", list(_buckets(size, now))),
        "spaces": ("n integer, tenant text, namespace text, pool text, worker text, model text", spaces),
        "workers": ("n integer, worker text", list(enumerate(workers))),
        "pools": ("n integer, pool text, model text", [(n, f"p{n}", f"m-p{n}") for n in range(POOLS)]),
    }
    time_type = "timestamptz" if connection.vendor == "postgresql" else "datetime"
    for name, (columns, rows) in tables.items():
        cursor.execute(f"CREATE TEMPORARY TABLE big_{name} ({columns.format(time=time_type)})")
        places = ", ".join(["%s"] * len(rows[0]))
        cursor.executemany(f"INSERT INTO big_{name} VALUES ({places})", rows)


def _buckets(size: Size, now: datetime) -> Iterator[tuple[int, int, object]]:
    adapt = connection.ops.adapt_datetimefield_value
    for width_s in WIDTHS_S:
        span_s = min(size.days * 86_400, RETENTION_S[width_s])
        last = floor_to(now, width_s)
        for n in range(int(span_s // width_s) + 1):
            yield n, width_s, adapt(last - timedelta(seconds=n * width_s))


def _insert(cursor, model: type[models.Model], given: dict[str, str], source: str) -> None:
    """Every column of the table: those given as SQL, the others at their default."""
    fields = [field for field in model._meta.concrete_fields if not field.primary_key]
    columns = {field.column: given.get(field.name) or _default(field) for field in fields}
    cursor.execute(
        f"INSERT INTO {model._meta.db_table} ({', '.join(columns)}) SELECT {', '.join(columns.values())} FROM {source}"
    )


def _default(field: models.Field) -> str:
    if isinstance(field, models.JSONField):
        return "'{}'"
    if field.null:
        return "NULL"
    return "0" if isinstance(field, models.IntegerField | models.FloatField) else "''"


_BUCKET = {"width_s": "b.width_s", "start": "b.start_at"}
_TTFT_HIT, _TTFT_MISS = """'{"118":6,"122":9,"130":2}'""", """'{"150":5,"154":3,"160":1}'"""
_LIVE = "(1 + (b.n + s.n) % 5)"
_REQUESTS = _BUCKET | {
    "requests": f"{_LIVE} * b.width_s / 10",
    "prompt_tokens": f"{_LIVE} * b.width_s * 320",
    "output_tokens": f"{_LIVE} * b.width_s * 12",
    "usage_known": f"{_LIVE} * b.width_s / 10",
    "hit_known": f"{_LIVE} * b.width_s / 10",
    "hit_tokens": f"{_LIVE} * b.width_s * 210",
    "hit_prompt_tokens": f"{_LIVE} * b.width_s * 320",
    "predicted_hit_tokens": f"{_LIVE} * b.width_s * 220",
    "saved_prefill_ms": f"{_LIVE} * b.width_s * 23.0",
    "ttft_hit": _TTFT_HIT,
    "ttft_miss": _TTFT_MISS,
    "decision_us": """'{"80":20}'""",
    "slo_met": f"{_LIVE} * b.width_s / 10",
    "slo_known": f"{_LIVE} * b.width_s / 10",
    "isolation_checked": f"{_LIVE} * b.width_s / 10",
}
_OF_NAMESPACE = {"tenant": "s.tenant", "namespace": "s.namespace", "pool": "s.pool", "worker": "s.worker",
                 "model": "s.model", "template": "''"}  # fmt: skip
_OF_POOL = {"pool": "s.pool", "model": "s.model"}
_HEAT = _BUCKET | {
    "namespace": "s.namespace",
    "pool": "s.pool",
    "prefix": "'00000000000' || (10000 + s.n)",
    "tokens": "2048",
    "requests": f"{_LIVE} * 4",
    "by_worker": """'{"p0/w000":3,"p1/w001":1}'""",
}
_EVICTIONS = _BUCKET | {
    "pool": "s.pool",
    "seconds": "b.width_s * 50",
    "evicted": """'{"t0001/n0>t0001/n0":90,"t0002/n0>t0001/n0":40,"t0001/n0>t0002/n0":8,">t0003/n1":5}'""",
    "restored_of": """'{"t0001/n0":20,"t0002/n0":3}'""",
    "lifetime": """'{"150":40,"200":60,"240":43}'""",
    "restore_gap": """'{"180":12,"220":11}'""",
}
_OF_WORKER = _BUCKET | {
    "worker": "s.worker",
    "polls_ok": "b.width_s",
    "running_sum": f"{_LIVE} * b.width_s",
    "running_max": _LIVE,
    "running_samples": "b.width_s",
    "waiting_sum": "(b.n + s.n) % 3 * b.width_s",
    "waiting_max": "(b.n + s.n) % 3",
    "waiting_samples": "b.width_s",
    "kv_use_sum": "(0.2 + (b.n * b.width_s / 60 + s.n * 13) % 60 / 100.0) * b.width_s",
    "kv_use_max": "0.2 + (b.n * b.width_s / 60 + s.n * 13) % 60 / 100.0",
    "kv_use_samples": "b.width_s",
    "delta_samples": "b.width_s",
    "prompt_tokens": f"{_LIVE} * b.width_s * 400",
    "prefix_query_tokens": f"{_LIVE} * b.width_s * 400",
    "prefix_hit_tokens": f"{_LIVE} * b.width_s * 260",
    "prompt_tokens_by_source": """'{"local_compute":1400,"local_cache_hit":2600,"external_kv_transfer":0}'""",
    "kv_samples": "b.width_s",
    "stored_blocks": f"{_LIVE} * b.width_s * 3",
    "removed_blocks": f"{_LIVE} * b.width_s * 2",
    "restored_blocks": "b.width_s / 4",
    "resident_blocks": "7000",
}
_OF_WORKERS = _BUCKET | {
    "pool": "s.pool",
    "delta_samples": "b.width_s",
    "prompt_tokens_by_source": """'{"local_compute":70000,"local_cache_hit":130000,"external_kv_transfer":0}'""",
    "kv_use_samples": "b.width_s",
    "kv_use_max": "0.6 + (b.n * b.width_s / 60 + s.n * 13) % 30 / 100.0",
    "kv_samples": "b.width_s",
    "stored_per_min": f"{_LIVE} * 9000.0",
    "removed_per_min": f"{_LIVE} * 6000.0",
    "restored_per_min": "700.0",
}
