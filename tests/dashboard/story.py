"""A fleet with a believable past, written through the same functions that ingest real telemetry."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta

from controlplane.fleet.findings import Observation, observe
from controlplane.fleet.models import Finding, PoolModel, Worker, WorkerPool, WorkerStatus
from controlplane.namespaces.models import ApiKey, CacheNamespace
from controlplane.policies.models import WatermarkPolicy
from controlplane.snapshots.models import PublishedSnapshot, RouterStatus
from controlplane.telemetry.ingest import apply_entries
from controlplane.telemetry.merge import Contribution
from controlplane.telemetry.rollups import WORKER_TABLE, add
from controlplane.tenants.models import Tenant, User
from router.adapters.telemetry_reach import Reach
from router.contract.histogram import observe as observe_value
from router.contract.telemetry import (
    Candidate,
    DecisionSample,
    KvRow,
    PrefixHeat,
    RequestRow,
    RouterState,
    Shipment,
    Violation,
    encode_shipment,
)

PASSWORD = "correct horse battery"
POOL, MODEL = "demo", "sim-llama"
WORKERS = ("demo/w1", "demo/w2", "demo/w3", "demo/w4")
TENANTS = {"acme": ("support", "search"), "globex": ("agents",), "initech": ("reports",)}
STEP_S = 5
CAPACITY_BLOCKS = 9600


def make_user(name: str = "olga", *, role: str = User.Role.OPERATOR) -> User:
    return User.objects.create_user(username=name, password=PASSWORD, role=role)


def make_fleet() -> None:
    """Tenants, namespaces, keys, a pool with four workers, the global policy."""
    for slug, namespaces in TENANTS.items():
        tenant = Tenant.objects.create(slug=slug, name=slug.title())
        for name in namespaces:
            namespace = CacheNamespace.objects.create(tenant=tenant, slug=name, ttft_slo_ms=1500)
            ApiKey.objects.create(
                namespace=namespace, key_id=f"{slug[:4]}{name[:4]}", secret_hash="0" * 64, name="app", created_by="test"
            )
    pool = WorkerPool.objects.create(slug=POOL, prefill_tokens_per_s=9000)
    PoolModel.objects.create(pool=pool, name=MODEL)
    for index, worker_id in enumerate(WORKERS):
        Worker.objects.create(
            pool=pool,
            slug=worker_id.split("/")[1],
            url=f"http://127.0.0.1:{29100 + index}",
            kv_events_endpoint=f"tcp://127.0.0.1:{29200 + index}",
            facts={"block_size": 16, "kv_blocks": CAPACITY_BLOCKS, "version": "0.21.0", "prefix_caching": True},
        )
    WatermarkPolicy.objects.get_or_create(scope="global", defaults={"low": 0.65, "high": 0.85})


def make_rollout(now: datetime, *, version: int = 12) -> None:
    """A published snapshot and one router on it."""
    PublishedSnapshot.objects.create(
        version=version, epoch=1, created_at=now, digest="0" * 64, document="{}", through_audit_id=0
    )
    RouterStatus.objects.create(router_id="router-1", boot="b", snapshot_version=version, inflight=7, seen_at=now)


def tell(now: datetime, *, minutes: int = 20, seed: int = 7) -> None:
    """`minutes` of traffic up to `now`: hits grow as caches warm, w2 runs hot, w4 evicts."""
    rng = random.Random(seed)
    steps = minutes * 60 // STEP_S
    shipments, polls = [], []
    for step in range(steps):
        at_s = int(now.timestamp()) - 1 - (steps - 1 - step) * STEP_S
        warm = 1 - math.exp(-step * STEP_S / 240)
        shipments += [_router_second(rng, at_s, step, warm), _kv_second(rng, at_s, step, warm)]
        polls += [_poll(rng, at_s, worker, index, warm) for index, worker in enumerate(WORKERS)]
    applied = apply_entries([encode_shipment(shipment) for shipment in shipments], now=now)
    assert not applied.refused, applied.refused[:3]
    add(WORKER_TABLE, polls, now_s=now.timestamp())
    _statuses(now, polls)


def pulse(now: datetime, step: int) -> None:
    """One more second of the same story; the router takes whatever is published."""
    rng = random.Random(step)
    at_s = int(now.timestamp()) - 1
    shipments = [_router_second(rng, at_s, step, 0.98), _kv_second(rng, at_s, step, 0.98)]
    apply_entries([encode_shipment(shipment) for shipment in shipments], now=now)
    polls = [_poll(rng, at_s, worker, index, 0.98) for index, worker in enumerate(WORKERS)]
    add(WORKER_TABLE, polls, now_s=now.timestamp())
    _statuses(now, polls)
    newest = PublishedSnapshot.objects.order_by("-version").first()
    if newest is not None:
        RouterStatus.objects.update(seen_at=now, snapshot_version=newest.version)


def trouble(now: datetime) -> None:
    """What needs attention: a violation, an event gap, a worker that no longer answers."""
    violation = Violation(
        at=now.timestamp() - 90,
        request_id="req-0badcafe",
        tenant="globex",
        namespace="globex/agents",
        pool=POOL,
        worker="demo/w3",
        model=MODEL,
        prompt_tokens=4096,
        cached_tokens=2048,
        bound_tokens=512,
    )
    row = _row("globex/agents", "demo/w3") | {"requests": 1, "isolation_checked": 1, "isolation_violations": 1}
    shipment = Shipment(
        source="router-2",
        boot="b",
        seq=1,
        at=now.timestamp() - 90,
        requests=[RequestRow(**row)],
        violations=[violation],
    )
    assert not apply_entries([encode_shipment(shipment)], now=now).refused
    gap = "3 KV event messages of demo/w4 are lost and cannot be replayed: its churn is a lower bound."
    observe([Observation("kv_event_gap", "demo/w4", gap, Finding.Severity.WARNING)], at=now)
    WorkerStatus.objects.filter(worker__slug="w1").update(
        consecutive_failures=5, error="connection refused", ok_at=now - timedelta(seconds=40)
    )


def _router_second(rng: random.Random, at_s: int, step: int, warm: float) -> Shipment:
    rows, decisions = [], []
    for namespace in (f"{tenant}/{name}" for tenant, names in TENANTS.items() for name in names):
        for index, worker in enumerate(WORKERS):
            if rng.random() < 0.45:
                rows.append(_requests(rng, namespace, worker, warm, hot=index == 1))
    if step % 6 == 0:
        decisions.append(_decision(rng, at_s, step))
    heat = [
        PrefixHeat(
            prefix=f"{key:016x}",
            namespace=namespace,
            pool=POOL,
            tokens=2048 * (key % 5 + 1),
            by_worker={"demo/w2": 3 + key % 3, "demo/w1": key % 2, "demo/w3": 1},
        )
        for key, namespace in ((0x9F3A77C1D2, "acme/support"), (0x51B0E4, "globex/agents"), (0xA7718802, "acme/search"))
    ]
    state = RouterState(snapshot_version=12, snapshot_age_s=3.0, inflight=9, index_blocks=41_000, index_bytes=9_000_000)
    return Shipment(
        source="router-1",
        boot="b",
        seq=step,
        at=float(at_s),
        requests=rows,
        decisions=decisions,
        heat=heat,
        router=state,
    )


def _row(namespace: str, worker: str) -> dict[str, object]:
    tenant = namespace.split("/")[0]
    return {"tenant": tenant, "namespace": namespace, "pool": POOL, "worker": worker, "model": MODEL}


def _requests(rng: random.Random, namespace: str, worker: str, warm: float, *, hot: bool) -> RequestRow:
    count = rng.randint(1, 4 if hot else 2)
    prompt = sum(rng.randint(1200, 5200) for _ in range(count))
    hit = int(prompt * warm * rng.uniform(0.55, 0.8))
    told, reach = RequestRow(), Reach()
    for _ in range(count):
        hits = rng.random() < warm * 0.85
        reach.count_ttft(
            told,
            ttft_ms=rng.lognormvariate(math.log(140), 0.35) if hits else rng.lognormvariate(math.log(620), 0.4),
            prompt_tokens=prompt // count,
            cached_tokens=prompt // count if hits else 0,
            beside=rng.randint(0, 6),
        )
        observe_value(reach.sizes, hit / count if hits else 0)
    reach.put(told)
    expected = min(prompt, int(hit * 1.04))
    best = min(prompt, int(expected * (1.25 if hot else 1.06)))
    return RequestRow(
        **_row(namespace, worker),
        requests=count,
        prompt_tokens=prompt,
        output_tokens=count * 120,
        usage_known=count,
        hit_tokens=hit,
        hit_known=count,
        hit_prompt_tokens=prompt,
        predicted_hit_tokens=int(hit * rng.uniform(0.96, 1.06)),
        saved_prefill_ms=hit / 9000 * 1000,
        ttft_hit=told.ttft_hit,
        ttft_miss=told.ttft_miss,
        cohorts=told.cohorts,
        hit_size=told.hit_size,
        expected_hit_tokens=expected,
        best_hit_tokens=best,
        repeated_tokens=min(prompt, int(best * 1.15)),
        routing_loss={"watermark" if hot else "choice": best - expected},
        slo_met=count if rng.random() < 0.985 else count - 1,
        slo_known=count,
        isolation_checked=count,
        decision_us={80: count},
        spills={"watermark": 1} if hot and rng.random() < 0.2 else {},
    )


def _decision(rng: random.Random, at_s: int, step: int) -> DecisionSample:
    candidates = [
        Candidate(
            worker="demo/w2", matched_tokens=3072, saved_ms=341, queue_ms=42, pressure_ms=9, net_ms=290, outstanding=4
        ),
        Candidate(worker="demo/w4", matched_tokens=0, saved_ms=0, queue_ms=5, net_ms=-5, outstanding=1),
        Candidate(worker="demo/w1", matched_tokens=512, saved_ms=57, queue_ms=80, net_ms=-23, outstanding=6),
        Candidate(worker="demo/w3", excluded="drain"),
    ]
    return DecisionSample(
        at=float(at_s),
        request_id=f"req-{step:08x}",
        tenant="acme",
        namespace="acme/support",
        pool=POOL,
        model=MODEL,
        policy_version=12,
        worker="demo/w2",
        reason="prefix",
        candidates=candidates,
        prompt_tokens=4100,
        sentence="demo/w2: saves 341 ms of prefill for 42 ms of queue; least-loaded demo/w4 would have recomputed 3,072"
        " tokens.",
        predicted_hit_tokens=3072,
        cached_tokens=3056,
        ttft_ms=rng.uniform(90, 900),
        duration_ms=2200.0,
        decision_us=38.0,
        outcome="ok" if rng.random() < 0.8 else "upstream_error",
    )


def _kv_second(rng: random.Random, at_s: int, step: int, warm: float) -> Shipment:
    rows = []
    for index, worker in enumerate(WORKERS):
        removed = int(rng.uniform(4, 12) * warm * (6 if index == 3 else 1))
        rows.append(
            KvRow(
                worker=worker,
                stored_blocks=int(rng.uniform(20, 60) * (1.2 - warm)) + removed,
                removed_blocks=removed,
                restored_blocks=removed // 4,
                resident_blocks=int(CAPACITY_BLOCKS * min(0.97, 0.2 + 0.75 * warm)),
            )
        )
    return Shipment(source="kv-events", boot="k", seq=step, at=float(at_s), kv=rows)


def _poll(rng: random.Random, at_s: int, worker: str, index: int, warm: float) -> Contribution:
    running = max(0, int(rng.gauss(9 if index == 1 else 4, 2)))
    use = min(0.93, (0.62 if index == 1 else 0.3) + 0.15 * math.sin(at_s / 130 + index) + rng.uniform(0, 0.06))
    waiting = max(0, int(rng.gauss(1 if index == 1 else -1, 1)))
    prompt = rng.randint(9000, 16000)
    hit = int(prompt * warm * 0.68)
    return Contribution(
        at_s=float(at_s),
        dims=(worker,),
        values={
            "polls_ok": 1,
            "running_sum": running,
            "running_max": running,
            "running_samples": 1,
            "waiting_sum": waiting,
            "waiting_max": waiting,
            "waiting_samples": 1,
            "kv_use_sum": use,
            "kv_use_max": use,
            "kv_use_samples": 1,
            "delta_samples": 1,
            "prompt_tokens": prompt,
            "prefix_query_tokens": prompt,
            "prefix_hit_tokens": hit,
            "prompt_tokens_by_source": {
                "local_compute": prompt - hit,
                "local_cache_hit": hit,
                "external_kv_transfer": 0,
            },
        },
    )


def _statuses(now: datetime, polls: list[Contribution]) -> None:
    newest = {poll.dims[0]: poll.values for poll in polls}
    for worker in Worker.objects.select_related("pool"):
        values = newest[worker.worker_id]
        WorkerStatus.objects.update_or_create(
            worker=worker,
            defaults={
                "polled_at": now,
                "ok_at": now,
                "scrape_ms": 6.2,
                "reading": {
                    "running": values["running_sum"],
                    "waiting": values["waiting_sum"],
                    "kv_use": values["kv_use_sum"],
                    "gpu": {"utilisation": 0.71, "power_w": 512.0},
                },
            },
        )


def utc_now() -> datetime:
    return datetime.now(UTC)
