"""Thirty days of a small fleet that grows, written through the functions that store real telemetry."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from typing import Any

from controlplane.audit.services import record
from controlplane.fleet.models import PoolModel, Worker, WorkerPool
from controlplane.namespaces.models import CacheNamespace
from controlplane.policies.models import WatermarkPolicy
from controlplane.telemetry.merge import Contribution
from controlplane.telemetry.models import PrefixBreakRollup
from controlplane.telemetry.rollups import HEAT_TABLE, REQUEST_TABLE, WORKER_TABLE, add
from controlplane.tenants.models import Tenant
from router.contract.histogram import bucket_of

POOL, MODEL = "llama", "sim-llama"
WORKERS = ("llama/w1", "llama/w2")
NAMESPACES = ("acme/support", "acme/search", "globex/agents")
DAYS = 30
KV_BLOCKS, BLOCK = 9600, 16
ODD_DAY = 20
"""Days before the end: misses were slow then."""


def make_fleet() -> None:
    for slug in ("acme", "globex"):
        Tenant.objects.get_or_create(slug=slug, defaults={"name": slug.title()})
    for name in NAMESPACES:
        tenant, _, slug = name.partition("/")
        CacheNamespace.objects.get_or_create(
            tenant=Tenant.objects.get(slug=tenant), slug=slug, defaults={"ttft_slo_ms": 1500}
        )
    pool, _ = WorkerPool.objects.get_or_create(slug=POOL, defaults={"block_size": BLOCK})
    PoolModel.objects.get_or_create(name=MODEL, defaults={"pool": pool})
    for index, name in enumerate(WORKERS):
        Worker.objects.get_or_create(
            pool=pool, slug=name.partition("/")[2],
            defaults={
                "url": f"http://127.0.0.1:{27900 + index}",
                "facts": {"kv_blocks": KV_BLOCKS, "block_size": BLOCK, "prefix_caching": True},
            },
        )  # fmt: skip
    WatermarkPolicy.objects.get_or_create(scope="global", defaults={"low": 0.65, "high": 0.85})


def tell(to: datetime, *, days: int = DAYS) -> None:
    """Hours up to `to` (a full hour, UTC). KV use grows by one point a day and has a daily rhythm."""
    rng = random.Random(11)
    requests, workers, heat = [], [], []
    for hour in range(days * 24):
        at = to - timedelta(hours=days * 24 - hour)
        for namespace in NAMESPACES:
            for worker in WORKERS:
                requests.append(_requests(rng, at, namespace, worker, day=hour / 24, odd=_is_odd(at, to)))
        requests.append(Contribution(at.timestamp(), ("",) * 6, {"requests": 0}))
        workers += [_worker(rng, at, worker, day=hour / 24) for worker in WORKERS]
        if hour % 6 == 0:
            heat += [_heat(rng, at, number) for number in range(6)]
    now_s = to.timestamp()
    add(REQUEST_TABLE, requests, now_s=now_s)
    add(WORKER_TABLE, workers, now_s=now_s)
    add(HEAT_TABLE, heat, now_s=now_s)
    _breaks(to)


def changes(actor: str = "user:olga") -> None:
    from django.db import transaction

    with transaction.atomic():
        for action, kind, name in (
            ("watermark.update", "watermark", "global"), ("template.publish", "template", "globex/desk@2"),
            ("namespace.update", "namespace", "acme/support"), ("user.sign_in", "user", "olga"),
        ):  # fmt: skip
            record(
                actor=actor, action=action, object_type=kind, object_id=name, before=None, after={},
                affects_routing=False, reason="because",
            )  # fmt: skip


def full_hour(now: datetime | None = None) -> datetime:
    return (now or datetime.now(UTC)).replace(minute=0, second=0, microsecond=0)


def _is_odd(at: datetime, to: datetime) -> bool:
    return (to - at) // timedelta(days=1) == ODD_DAY


def _busy(at: datetime) -> float:
    """Of the day: 0.4 at night, 1 in the early afternoon."""
    return 0.7 - 0.3 * math.cos((at.hour - 2) / 24 * 2 * math.pi)


def _requests(rng: random.Random, at: datetime, namespace: str, worker: str, *, day: float, odd: bool) -> Contribution:
    count = round(rng.uniform(60, 90) * _busy(at) * (1 + day / 60))
    prompt = count * rng.randint(2600, 3400)
    share = 0.35 if namespace == "globex/agents" else 0.68
    hit = int(prompt * share * rng.uniform(0.95, 1.05))
    hits = round(count * share)
    hot = worker.endswith("w1")
    values: dict[str, Any] = {
        "requests": count,
        "prompt_tokens": prompt,
        "output_tokens": count * 120,
        "usage_known": count,
        "hit_tokens": hit,
        "hit_known": count,
        "hit_prompt_tokens": prompt,
        "predicted_hit_tokens": int(hit * 1.02),
        "saved_prefill_ms": hit / 9000 * 1000,
        "slo_met": count - rng.randint(0, 2),
        "slo_known": count,
        "isolation_checked": count,
        "ttft_hit": _times(rng, hits, 140),
        "ttft_miss": _times(rng, count - hits, 1900 if odd else 620),
        "spills": {"watermark": 1} if hot and day > 25 else {},
        "errors": {"upstream_error": 1} if rng.random() < 0.02 else {},
    }
    return Contribution(at.timestamp(), (namespace.partition("/")[0], namespace, POOL, worker, MODEL, ""), values)


def _times(rng: random.Random, count: int, median_ms: float) -> dict[str, int]:
    found: dict[str, int] = {}
    for _ in range(count):
        index = str(bucket_of(rng.lognormvariate(math.log(median_ms), 0.35)))
        found[index] = found.get(index, 0) + 1
    return found


def _worker(rng: random.Random, at: datetime, worker: str, *, day: float) -> Contribution:
    use = min(0.97, (0.42 + 0.01 * day) * _busy(at) * 1.12 + rng.uniform(-0.02, 0.02))
    removed = rng.randint(200, 900)
    values = {
        "polls_ok": 1800, "kv_use_sum": use * 1800, "kv_use_max": min(1.0, use + 0.05), "kv_use_samples": 1800,
        "kv_samples": 3600, "stored_blocks": removed + 40, "removed_blocks": removed, "restored_blocks": removed // 3,
        "resident_blocks": int(KV_BLOCKS * 0.9), "preemptions": 1 if rng.random() < 0.1 else 0,
    }  # fmt: skip
    return Contribution(at.timestamp(), (worker,), values)


def _heat(rng: random.Random, at: datetime, number: int) -> Contribution:
    namespace = NAMESPACES[number % len(NAMESPACES)]
    requests = 600 // (number + 1) + rng.randint(0, 5)
    by_worker = {"llama/w1": requests - requests // 5, "llama/w2": requests // 5}
    values = {"requests": requests, "by_worker": by_worker, "tokens": 2048}
    return Contribution(at.timestamp(), (namespace, POOL, f"{0x51B0E4 + number:016x}"), values)


def _breaks(to: datetime) -> None:
    start = to - timedelta(hours=3)
    common = {"start": start, "namespace": "globex/agents", "pool": POOL, "template": "desk@2", "last_at": start}
    PrefixBreakRollup.objects.create(**common, kind="", prompts=4000)
    PrefixBreakRollup.objects.create(**common, kind="clock", prompts=900, lost_bytes=900 * 8192, position_bytes=120)


def page() -> None:
    """For those who look at the pages: schedules, a report with a link and a failed delivery, one under way."""
    from controlplane.reports import producing, services, sharing
    from controlplane.reports.models import ReportDelivery, ReportRun

    actor = "user:olga"
    make_fleet()
    tell(full_hour())
    changes()
    weekly = services.create_schedule(
        actor=actor, slug="weekly", name="Weekly capacity", cron="0 8 * * 1", time_zone="Europe/Berlin",
        gpu_hour_cost=2.5, recipients=[{"kind": "email", "to": "capacity@example.com"}],
    )  # fmt: skip
    services.create_schedule(
        actor=actor, slug="acme-monthly", name="acme, month by month", cron="0 7 1 * *", time_zone="UTC",
        scope="tenant", subject="acme", formats=["pdf"],
    )  # fmt: skip
    run = services.run_now(weekly.pk, actor=actor)
    producing.make(run.pk)
    sharing.share(run.pk, actor=actor, days=30)
    ReportDelivery.objects.update(
        state="dead", attempts=7, next_attempt_at=None, last_error="The mail server refused this address."
    )
    services.run_now(weekly.pk, actor=actor)
    ReportRun.objects.filter(state="queued").update(state="running", step="forecast", step_number=4)
