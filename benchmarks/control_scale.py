"""A large installation: what a publication costs on both sides, and what list pages ask of the database.

    python -m benchmarks.control_scale [--json] [--tenants 1000] [--namespaces 5] [--workers 200]

Fills a database of its own (SQLite in a temporary folder, or a fresh one named by TIDEMARK_DATABASE_URL), compiles,
signs and publishes, then has a router's table take each document inside an event loop in which something else ticks
every millisecond: the longest silence of that ticker is how long requests would have waited. Wall-clock time: bars
are held against medians, and what else runs on the machine counts.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

COMPILE_S_MAX = 1.0
APPLY_MS_MAX = 50.0
QUERIES_MAX = 12
ROUNDS = 7
TICK_S = 0.001
API_LISTS = (
    "tenants", "namespaces", "keys", "pools", "workers", "routers", "snapshots", "audit", "watermark-policies",
    "routing-policies", "policy-revisions", "rollouts", "change-requests", "templates", "trust-groups", "findings",
    "violations", "canaries", "ttft-audits", "revocations", "members", "webhooks", "webhook-deliveries", "dead-letters",
    "report-schedules", "report-runs", "alert-rules", "alert-history", "silences", "placements", "checklist",
    "decisions", "what-ifs",
)  # fmt: skip
PAGES = ("fleet", "workers", "policies", "isolation", "requests", "templates", "tenants")


@dataclass(frozen=True)
class Page:
    path: str
    queries: int
    ms: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--tenants", type=int, default=1000)
    parser.add_argument("--namespaces", type=int, default=5, help="of each tenant")
    parser.add_argument("--workers", type=int, default=200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidemark-scale-") as folder:
        _set_up(Path(folder))
        fill(arguments.tenants, arguments.namespaces, arguments.workers)
        result = {"tenants": arguments.tenants, "namespaces": arguments.tenants * arguments.namespaces,
                  "workers": arguments.workers, **measure(Path(folder))}  # fmt: skip
    print(json.dumps(result, indent=1) if arguments.json else table(result))
    sys.exit(0 if result["ok"] else 1)


def _set_up(folder: Path) -> None:
    """Django with a run folder that ends with this process, and nothing that pushes anywhere."""
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "TIDEMARK_RUN_DIR": str(folder),
        "TIDEMARK_REDIS_URL": f"unix://{folder}/none.sock",
        "TIDEMARK_LOG_LEVEL": "ERROR",
    }
    import django

    django.setup()
    from django.conf import settings
    from django.core.management import call_command

    settings.CACHES["default"] = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    settings.ALLOWED_HOSTS = ["testserver"]
    call_command("migrate", verbosity=0)


def fill(tenants: int, namespaces: int, workers: int) -> None:
    """One key a namespace; four pools; a policy for each pool and for one namespace in ten."""
    from controlplane.fleet.models import PoolModel, Worker, WorkerPool
    from controlplane.namespaces.models import ApiKey, CacheNamespace
    from controlplane.policies.models import WatermarkPolicy
    from controlplane.tenants.models import Tenant

    owners = Tenant.objects.bulk_create([Tenant(slug=f"t{n:05d}", name=f"Tenant {n}") for n in range(tenants)])
    rows = CacheNamespace.objects.bulk_create(
        [CacheNamespace(tenant=owner, slug=f"n{n}") for owner in owners for n in range(namespaces)]
    )
    ApiKey.objects.bulk_create(
        [
            ApiKey(namespace=row, key_id=f"{n:012d}", secret_hash=f"{n:064x}", name="k", created_by="user:x")
            for n, row in enumerate(rows)
        ]
    )
    pools = WorkerPool.objects.bulk_create([WorkerPool(slug=f"p{n}") for n in range(4)])
    PoolModel.objects.bulk_create([PoolModel(pool=pool, name=f"m-{pool.slug}") for pool in pools])
    Worker.objects.bulk_create(
        [
            Worker(pool=pools[n % 4], slug=f"w{n}", url=f"http://10.0.{n // 250}.{n % 250 + 1}:8000")
            for n in range(workers)
        ]
    )
    WatermarkPolicy.objects.bulk_create(
        [WatermarkPolicy(scope="pool", pool=pool) for pool in pools]
        + [WatermarkPolicy(scope="namespace", namespace=row) for row in rows[::10]]
    )


def measure(folder: Path) -> dict[str, Any]:
    from controlplane.snapshots.compiler import compile_snapshot
    from controlplane.snapshots.services import reconcile

    compiled = [_timed(compile_snapshot) for _ in range(ROUNDS)]
    published_ms = _timed(reconcile) * 1000
    applied, stalls, size = asyncio.run(_applied(folder))
    pages = measure_pages()
    worst = max(pages, key=lambda page: page.queries)
    return {
        "document_bytes": size,
        "compile_s": _summary(compiled),
        "publish_ms": round(published_ms, 1),
        "router_apply_ms": _summary(applied),
        "router_stall_ms": _summary(stalls),
        "pages": [asdict(page) for page in pages],
        "queries_max": worst.queries,
        "load_average": os.getloadavg()[0],
        "ok": _median(compiled) <= COMPILE_S_MAX and _median(stalls) <= APPLY_MS_MAX and worst.queries <= QUERIES_MAX,
    }


def _timed(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


async def _applied(folder: Path) -> tuple[list[float], list[float], int]:
    """(ms from the offered bytes to what is in force and on the disk, ms of the longest silence beside it, bytes)."""
    from django.conf import settings

    from controlplane.snapshots.compiler import compile_snapshot
    from router.adapters.snapshot_disk import SnapshotDisk
    from router.adapters.snapshot_source import SnapshotSource
    from router.adapters.snapshot_store import SnapshotStore
    from router.contract.snapshot import encode_document, sign_snapshot
    from router.core.table import RoutingTable

    snapshot = await asyncio.to_thread(compile_snapshot)
    key, now = settings.FLEET_KEY, time.time()
    documents = [
        encode_document(sign_snapshot(snapshot, version=number, epoch=1, created_at=now, fleet_key=key))
        for number in range(1, ROUNDS + 2)
    ]
    rng = random.Random(1)
    routing = RoutingTable(fleet_key=key, booted_at=now, rng=rng)
    store = SnapshotStore(
        fleet_key=key,
        disk=SnapshotDisk(folder / "router"),
        apply=lambda document, policy: routing.apply_snapshot(document, policy, now=time.time()),
    )
    source = SnapshotSource(
        fleet_key=key, store=store, confirm=lambda at: None, hello=lambda: None, control_url="", valkey=None, rng=rng,  # type: ignore[arg-type,return-value]
    )  # fmt: skip
    await source.offer(documents.pop(0), source="poll")
    applied, stalls = [], []
    for document in documents:
        gc.collect()
        took_ms, stall_ms = await _beside_a_ticker(partial(source.offer, document, source="poll"))
        applied.append(took_ms)
        stalls.append(stall_ms)
    return applied, stalls, len(documents[0])


async def _beside_a_ticker(act: Callable[[], Any]) -> tuple[float, float]:  # Any: a coroutine
    gaps: list[float] = []

    async def tick() -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.perf_counter()
            gaps.append(now - last - TICK_S)
            last = now

    ticker = asyncio.create_task(tick())
    await asyncio.sleep(0.02)
    gaps.clear()
    began = time.perf_counter()
    await act()
    took = time.perf_counter() - began
    await asyncio.sleep(0.01)
    ticker.cancel()
    return took * 1000, max(gaps) * 1000


def measure_pages(user: str = "scale") -> list[Page]:
    """Each list's first page of the API and the dashboard, asked twice; the second counts."""
    from django.test import Client
    from django.urls import reverse

    from controlplane.tenants.models import User

    client = Client()
    client.force_login(User.objects.create_user(user, role=User.Role.ADMIN))
    paths = [f"/api/v1/{name}" for name in API_LISTS] + [reverse(name) for name in PAGES]
    return [_page(client, path) for path in paths]


def _page(client: Any, path: str) -> Page:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    client.get(path)
    with CaptureQueriesContext(connection) as captured:
        began = time.perf_counter()
        answer = client.get(path)
        took = time.perf_counter() - began
    if answer.status_code != 200:
        raise RuntimeError(f"{path}: {answer.status_code}")
    return Page(path, len(captured), round(took * 1000, 1))


def _summary(values: Sequence[float]) -> dict[str, float]:
    return {"median": round(_median(values), 3), "max": round(max(values), 3)}


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)


def table(result: dict[str, Any]) -> str:
    lines = [
        f"{result['tenants']} tenants, {result['namespaces']} namespaces, {result['workers']} workers: "
        f"{result['document_bytes'] / 1e6:.1f} MB",
        f"(load average {result['load_average']:.1f}; median, and most in brackets)",
        f"compile        {result['compile_s']['median']:8.3f} s ({result['compile_s']['max']}), "
        f"at most {COMPILE_S_MAX}",
        f"publish        {result['publish_ms']:8.1f} ms",
        f"router apply   {result['router_apply_ms']['median']:8.1f} ms ({result['router_apply_ms']['max']})",
        f"router stall   {result['router_stall_ms']['median']:8.1f} ms ({result['router_stall_ms']['max']}), "
        f"at most {APPLY_MS_MAX}",
        *(f"{page['path']:32} {page['queries']:3} queries {page['ms']:8.1f} ms" for page in result["pages"]),
        f"most queries   {result['queries_max']:8}     at most {QUERIES_MAX}",
    ]
    return "\n".join([*lines, "ok" if result["ok"] else "MISSED"])


if __name__ == "__main__":
    main()
