"""The fleet's eyes against a vLLM-shaped server: live test, polls, KV events, ingestion, what the operator reads."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest
import redis
import zmq.asyncio
from django.utils import timezone

from controlplane.fleet import services
from controlplane.fleet.kv_events.link import Endpoints, WorkerLink
from controlplane.fleet.kv_events.outlet import Outlet
from controlplane.fleet.models import Finding, Worker, WorkerStatus
from controlplane.fleet.selectors import worker_row
from controlplane.fleet.tasks import poll_all, poll_shard
from controlplane.telemetry.models import WorkerRollup
from controlplane.telemetry.selectors import churn_series, heat_map, last_minutes, prompt_by_source_series
from controlplane.telemetry.tasks import ingest
from router.contract.channels import KV_LIVE_HASH, WORKER_LIVE_HASH
from router.contract.live import decode_kv, decode_worker
from tests.fleet import simulated

NETWORKS = ["127.0.0.0/8"]


@pytest.fixture(autouse=True)
def no_publication(monkeypatch, settings):
    """Snapshots are another part's concern: a publication would compile one after each change."""
    settings.TIDEMARK_ON_ROUTING_CHANGE = "tests.fleet.test_against_simulated_worker.nothing"


def nothing() -> None:
    pass


@pytest.fixture(scope="module")
def simulated_url():
    with simulated.worker() as url:
        yield url


@pytest.fixture
def worker(db, simulated_url) -> Worker:
    services.create_pool(actor="user:alice", slug="p", models=["sim"], block_size=simulated.BLOCK_SIZE)
    return services.add_worker(
        actor="user:alice", pool="p", slug="w1", url=simulated_url, dcgm_url=f"{simulated_url}/dcgm/metrics"
    )


def test_the_live_test_finds_everything_in_order_and_fills_in_the_endpoints(worker):
    report = services.test_worker("p/w1", actor="user:alice")
    outcome = {check.check: check.ok for check in report.checks}
    assert outcome == {
        "reachable": True, "models": True, "metrics": True, "prefix_caching": True, "block_size": True,
        "hash_algorithm": True, "events": True, "usage_details": True, "gpu": True, "dev_mode": True,
    }, [check for check in report.checks if check.ok is not True]  # fmt: skip
    worker.refresh_from_db()
    assert worker.kv_events_endpoint.startswith("tcp://127.0.0.1:")
    assert worker.kv_replay_endpoint.startswith("tcp://127.0.0.1:")
    assert worker.facts["block_size"] == simulated.BLOCK_SIZE
    assert worker.facts["usage_details"] is True
    assert worker.test_report[0]["check"] == "reachable"


def test_the_live_test_names_what_is_wrong(db):
    services.create_pool(actor="user:alice", slug="p", models=["sim", "absent"], block_size=32)
    with simulated.worker("--no-prompt-tokens-details", events=False) as url:
        services.add_worker(actor="user:alice", pool="p", slug="w2", url=url)
        report = services.test_worker("p/w2", actor="user:alice")
    failed = {check.check for check in report.checks if check.ok is False}
    assert failed == {"models", "block_size", "events", "usage_details"}
    assert set(Finding.objects.filter(resolved_at=None).values_list("kind", flat=True)) == {
        "model_not_served", "block_size_mismatch", "usage_details_off",
    }  # fmt: skip


def test_a_worker_that_does_not_answer_fails_at_once(db, free_port):
    services.create_pool(actor="user:alice", slug="p", models=["sim"])
    services.add_worker(actor="user:alice", pool="p", slug="w3", url=f"http://127.0.0.1:{free_port}")
    report = services.test_worker("p/w3", actor="user:alice")
    assert [(check.check, check.ok) for check in report.checks] == [("reachable", False)]


def test_polls_become_figures_and_agree_with_the_workers_own_counters(worker, simulated_url, valkey_url):
    assert poll_shard([worker.pk]) == 1
    before = WorkerStatus.objects.get(worker=worker).counters["values"]
    simulated.complete(simulated_url, "harbour " * 400)
    simulated.complete(simulated_url, "harbour " * 400)
    assert poll_shard([worker.pk]) == 1
    after = WorkerStatus.objects.get(worker=worker).counters["values"]
    for width_s in (10, 60, 3600):
        rows = WorkerRollup.objects.filter(width_s=width_s)
        assert sum(row.polls_ok for row in rows) == 2
        assert sum(row.delta_samples for row in rows) == 1
        for name in ("prompt_tokens", "prefix_hit_tokens", "prefix_query_tokens", "requests_finished", "ttft_count"):
            assert sum(getattr(row, name) for row in rows) == after[name] - before[name] > 0, name
    row = worker_row("p/w1")
    assert (row.health, row.running, row.event_state) == ("ok", 0, "off")
    assert 0 <= row.gpu["utilisation"] <= 1
    assert row.capacity_blocks == 256
    live = decode_worker(redis.Redis.from_url(valkey_url).hget(WORKER_LIVE_HASH, "p/w1"))
    assert live.ok and live.kv_use is not None and live.started_at < live.at
    series = prompt_by_source_series(last_minutes(5))
    assert (
        sum(v for v in series.by_source["local_cache_hit"] if v)
        == after["prefix_hit_tokens"] - before["prefix_hit_tokens"]
    )
    assert any(v is not None for v in heat_map(last_minutes(5), "kv_use").values[0])


@pytest.mark.django_db
def test_events_become_occupancy_and_churn(worker, simulated_url, valkey_url):
    services.test_worker("p/w1", actor="user:alice")
    worker.refresh_from_db()
    endpoints = Endpoints("p/w1", worker.kv_events_endpoint, worker.kv_replay_endpoint)
    resident = asyncio.run(_follow(endpoints, simulated_url, valkey_url))
    assert resident is not None and resident > 0
    assert ingest() == 3
    row = worker_row("p/w1", now=timezone.now())
    assert (row.resident_blocks, row.event_state) == (resident, "live")
    churn = churn_series(last_minutes(5))
    assert sum(value for value in churn.removed_per_min if value) > 0
    assert sum(value for value in churn.stored_per_min if value) > 0
    live = decode_kv(redis.Redis.from_url(valkey_url).hget(KV_LIVE_HASH, "p/w1"))
    assert live.resident_blocks == resident
    assert live.cache_epoch_at is not None and live.cache_epoch_at <= time.time()
    assert live.evictions_per_s > 0


async def _follow(endpoints: Endpoints, url: str, valkey_url: str) -> int | None:
    """Follows for a while in which more is asked than the cache holds. The resident count at the end."""
    context = zmq.asyncio.Context()
    link, outlet = WorkerLink(context, endpoints, NETWORKS), Outlet(valkey_url)
    running = asyncio.create_task(link.run())
    try:
        await _until(lambda: link.connected and link.tracker.state == "live")
        for second in range(3):
            for topic in range(4):
                await asyncio.to_thread(simulated.complete, url, f"second {second} topic {topic} " + "tide " * 500)
            await asyncio.sleep(0.1)
            at = time.time()
            row, live = link.reporter.report(link.tracker, at=at, connected=link.connected)
            assert await outlet.deliver([row], {row.worker: live}, at=at)
        return link.tracker.resident_blocks
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await outlet.close()
        context.destroy(linger=0)


async def _until(condition) -> None:
    for _ in range(100):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it never came true")


def test_lost_events_are_made_up_by_replay():
    """A11: a tenth and more of the batches are never published; the occupancy stays exact."""
    with simulated.worker("--fault", "drop_events=0.4") as url:
        counted, true = asyncio.run(_follow_lossy(url))
    assert counted == true > 0


async def _follow_lossy(url: str) -> tuple[int | None, int]:
    """Resident blocks by a link that loses batches, and by one that reads everything from the replay buffer."""
    sources = (await asyncio.to_thread(httpx.get, f"{url}/kv_event_sources")).json()["0"]
    endpoints = Endpoints("p/w1", sources["endpoint"], sources["replay_endpoint"])
    context = zmq.asyncio.Context()
    link, late = WorkerLink(context, endpoints, NETWORKS), WorkerLink(context, endpoints, NETWORKS)
    running = [asyncio.create_task(link.run())]
    try:
        await _until(lambda: link.connected and link.tracker.state == "live")
        for topic in range(12):
            await asyncio.to_thread(simulated.complete, url, f"topic {topic} " + "tide " * 300)
        assert link.tracker.take_counts().gaps > 0
        # The last batches may be among the lost: without a later one, only asking shows them.
        link.check_tail(now=time.monotonic() + 60)
        running.append(asyncio.create_task(late.run()))
        await _until(lambda: link.tracker.state == late.tracker.state == "live" and late.connected)
        return link.tracker.resident_blocks, late.tracker.resident_blocks
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        context.destroy(linger=0)


@pytest.mark.parametrize("fault", ["garbage", "nan", "slow", "huge"])
def test_a_broken_metrics_page_is_survived(worker, simulated_url, fault):
    """A23: the poll ends in time, nothing negative or zero is made up, and the next good page counts again."""
    assert poll_shard([worker.pk]) == 1
    try:
        httpx.post(f"{simulated_url}/sim/faults", json={"metrics": fault}).raise_for_status()
        began = time.monotonic()
        poll_shard([worker.pk])
        assert time.monotonic() - began < 3
    finally:
        httpx.post(f"{simulated_url}/sim/faults", json={"metrics": None}).raise_for_status()
    assert poll_shard([worker.pk]) == 1
    rows = WorkerRollup.objects.filter(width_s=3600)
    assert sum(row.running_samples for row in rows) == 2
    assert all(row.prefix_hit_tokens >= 0 for row in rows)


def test_the_tick_polls_every_worker_and_forgets_deleted_ones(worker, valkey_url, settings, monkeypatch):
    services.set_worker_state("p/w1", actor="user:alice", state="maintenance")
    client = redis.Redis.from_url(valkey_url)
    client.hset(WORKER_LIVE_HASH, "p/gone", b"{}")
    asked = []
    monkeypatch.setattr(poll_shard, "apply_async", lambda args, expires: asked.append((args, expires)))
    assert poll_all() == 1
    assert asked == [([[worker.pk]], 3.0)]
    assert client.hkeys(WORKER_LIVE_HASH) == []
