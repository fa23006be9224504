"""Polls against a server that misbehaves in every way a worker can (A23), and what is stored of them."""

from __future__ import annotations

import asyncio
import itertools
import time
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from controlplane.fleet.deltas import Base
from controlplane.fleet.models import Finding, Worker, WorkerPool, WorkerStatus
from controlplane.fleet.poll import PollOutcome, Target, poll_workers
from controlplane.fleet.poll_store import load_targets, store
from controlplane.fleet.selectors import worker_row
from controlplane.fleet.tasks import poll_shard
from controlplane.telemetry.models import WorkerRollup

PAGES = Path(__file__).parent.parent / "fixtures" / "vllm"
NETWORKS = ["127.0.0.0/8"]
_ports = itertools.count(27_100)


def page(hits: int = 10, *, started_at: float = 1000.0, extra: str = "", running: str = "1") -> bytes:
    text = (
        f"vllm:num_requests_running {running}\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.25\n"
        f"vllm:prefix_cache_queries_total {hits * 2}\nvllm:prefix_cache_hits_total {hits}\n"
        f'vllm:prompt_tokens_total {hits * 2}\nvllm:cache_config_info{{block_size="16",enable_prefix_caching="True",'
        f'num_gpu_blocks="64"}} 1\nprocess_start_time_seconds {started_at}\n{extra}'
    )
    return _answer(text.encode())


def _answer(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


class Server:
    """Answers every request with the bytes at hand, then closes; `script` may be a coroutine that writes itself."""

    def __init__(self) -> None:
        self.answer = page()
        self.script = None
        self.paths: list[str] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.paths.append(head.split(b" ")[1].decode())
            if self.script is not None:
                await self.script(writer)
            else:
                writer.write(self.answer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()


async def poll(server: Server, *, deadline_s: float = 1.0, **target: object) -> PollOutcome:
    """One poll of the server."""
    listening = await asyncio.start_server(server, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with listening:
        wanted = Target(pk=1, worker_id="p/w1", url=f"http://127.0.0.1:{port}", **target)
        [outcome] = await poll_workers([wanted], networks=NETWORKS, deadline_s=deadline_s)
    return outcome


@pytest.mark.parametrize("name", ["idle", "after_load", "dp2"])
async def test_it_reads_real_pages(name):
    server = Server()
    server.answer = _answer((PAGES / f"metrics_{name}.txt").read_bytes())
    outcome = await poll(server)
    assert outcome.ok and outcome.reading.vllm_series > 60
    assert outcome.scrape_ms > 0


async def test_it_remembers_a_worker_that_filters():
    server = Server()
    assert (await poll(server)).filtered is True
    assert server.paths[0].startswith("/metrics/?name[]=vllm:num_requests_running&")
    assert len(server.paths) == 1


async def test_it_falls_back_to_the_full_page_and_remembers_that():
    class Old(Server):
        async def __call__(self, reader, writer):
            head = await reader.readuntil(b"\r\n\r\n")
            self.paths.append(head.split(b" ")[1].decode())
            writer.write(page() if self.paths[-1] == "/metrics" else _answer(b"", "404 Not Found"))
            await writer.drain()
            writer.close()

    server = Old()
    outcome = await poll(server)
    assert outcome.ok and outcome.filtered is False
    await poll(server, filtered=False)
    assert server.paths[1:] == ["/metrics", "/metrics"]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (_answer(b"<html>busy</html>"), "garbage"),
        (_answer(b"\xff\xfe\x00"), "not_text"),
        (_answer(b"", "500 Internal Server Error"), "status"),
        (b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n", "status"),
        (_answer(b"a" * (2 * 1024 * 1024)), "too_large"),
        (b"not http at all\r\n\r\n", "unreachable"),
        (b"", "unreachable"),
    ],
)
async def test_it_rejects_what_is_no_page(answer, kind):
    server = Server()
    server.answer = answer
    outcome = await poll(server, filtered=False)
    assert (outcome.ok, outcome.error_kind) == (False, kind)
    assert not outcome.increases.known


async def test_it_stops_reading_a_page_without_end():
    sent = 0

    async def endless(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 104857600\r\n\r\n")
        while sent < 100 * 1024 * 1024:
            writer.write(b"x" * 65_536)
            await writer.drain()
            sent += 65_536

    server = Server()
    server.script = endless
    outcome = await poll(server, filtered=False)
    assert outcome.error_kind == "too_large"
    assert sent < 20 * 1024 * 1024


async def test_a_slow_drip_ends_at_the_deadline():
    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        for _ in range(100):
            writer.write(b"v")
            await writer.drain()
            await asyncio.sleep(0.05)

    server = Server()
    server.script = drip
    began = time.monotonic()
    outcome = await poll(server, deadline_s=0.5, filtered=False)
    assert outcome.error_kind == "timeout"
    assert time.monotonic() - began < 1.0


async def test_a_refused_address_is_not_called():
    target = Target(pk=1, worker_id="p/w1", url="http://169.254.169.254:80")
    [outcome] = await poll_workers([target], networks=["0.0.0.0/0"], deadline_s=1)
    assert outcome.error_kind == "address"


async def test_a_missing_gpu_page_leaves_the_workers_figures():
    server = Server()
    outcome = await poll(server, dcgm_url="http://127.0.0.1:1/metrics")
    assert outcome.ok and outcome.gpu is None


async def test_it_takes_increases_from_the_last_good_page():
    server = Server()
    server.answer = page(30)
    base = Base(at=time.time() - 2, counters={"prefix_hit_tokens": 10.0}, started_at=1000.0)
    outcome = await poll(server, base=base)
    assert outcome.increases.values == {"prefix_hit_tokens": 20.0}


# what is stored


@pytest.fixture
def worker(db) -> Worker:
    pool = WorkerPool.objects.create(slug="p", block_size=16)
    return Worker.objects.create(pool=pool, slug="w1", url=f"http://127.0.0.1:{next(_ports)}")


def polled(worker: Worker, answer: bytes, *, seconds_ago: float = 0) -> PollOutcome:
    """Polls a server with this answer for the worker's stored target, and stores the outcome."""
    server = Server()
    server.answer = answer
    [target] = load_targets([worker.pk])

    async def run() -> PollOutcome:
        listening = await asyncio.start_server(server, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        async with listening:
            here = Target(worker.pk, target.worker_id, f"http://127.0.0.1:{port}", base=target.base)
            return (await poll_workers([here], networks=NETWORKS, deadline_s=1))[0]

    outcome = asyncio.run(run())
    outcome.at -= seconds_ago
    store([outcome], at=timezone.now() - timedelta(seconds=seconds_ago))
    return outcome


def open_kinds() -> set[str]:
    return set(Finding.objects.filter(resolved_at=None).values_list("kind", flat=True))


def test_a_reset_gives_no_negative_rate_and_one_finding(worker):
    polled(worker, page(100), seconds_ago=6)
    polled(worker, page(120), seconds_ago=4)
    polled(worker, page(5), seconds_ago=2)
    polled(worker, page(8))
    assert open_kinds() == {"counter_reset"}
    for width_s in (10, 60, 3600):
        rows = WorkerRollup.objects.filter(width_s=width_s)
        assert sum(row.prefix_hit_tokens for row in rows) == 20 + 3
        assert sum(row.counter_resets for row in rows) == 1
        assert sum(row.delta_samples for row in rows) == 2


def test_a_restart_is_told_from_a_reset(worker):
    polled(worker, page(100), seconds_ago=2)
    polled(worker, page(200, started_at=2000.0))
    assert open_kinds() == {"worker_restarted"}


def test_failures_age_the_last_good_figures_and_raise_one_finding(worker):
    polled(worker, page(running="3"), seconds_ago=20)
    for _ in range(4):
        polled(worker, _answer(b"", "500 Internal Server Error"))
    row = worker_row("p/w1")
    assert (row.health, row.running) == ("down", 3)
    assert row.poll_age_s >= 20
    [finding] = Finding.objects.all()
    assert (finding.kind, finding.count) == ("poll_failed", 2)
    polled(worker, page())
    assert open_kinds() == set()
    assert worker_row("p/w1").health == "ok"


def test_garbage_is_a_finding_at_once_and_clears(worker):
    polled(worker, page(), seconds_ago=2)
    polled(worker, _answer(b"<html></html>"))
    assert open_kinds() == {"metrics_garbage"}
    polled(worker, page())
    assert open_kinds() == set()


def test_hidden_figures_are_unknown_and_a_finding(worker):
    polled(worker, _answer((PAGES / "metrics_disable_log_stats.txt").read_bytes()))
    row = worker_row("p/w1")
    assert (row.running, row.waiting, row.kv_use) == (None, None, None)
    assert open_kinds() == {"metrics_missing"}
    rollup = WorkerRollup.objects.get(width_s=10)
    assert (rollup.polls_ok, rollup.running_samples, rollup.kv_use_samples) == (1, 0, 0)


def test_nan_is_unknown_and_a_finding(worker):
    polled(worker, page(running="NaN"))
    assert worker_row("p/w1").running is None
    assert open_kinds() == {"metrics_garbage"}


def test_a_wrong_block_size_stays_a_finding_until_the_page_says_otherwise(worker):
    WorkerPool.objects.update(block_size=32)
    server = page()
    [target] = load_targets([worker.pk])
    assert target.block_size == 32
    outcome = polled(worker, server)
    outcome.target = Target(worker.pk, "p/w1", worker.url, block_size=32)
    store([outcome], at=timezone.now())
    assert open_kinds() == {"block_size_mismatch"}
    outcome.target = Target(worker.pk, "p/w1", worker.url, block_size=16)
    store([outcome], at=timezone.now())
    assert open_kinds() == set()


def test_facts_of_the_page_reach_the_worker(worker):
    polled(worker, page())
    worker.refresh_from_db()
    assert worker.facts == {"block_size": 16, "kv_blocks": 64, "prefix_caching": True}


def test_a_worker_deleted_meanwhile_is_left_out(worker):
    outcome = PollOutcome(target=Target(pk=worker.pk + 1, worker_id="p/gone", url="http://127.0.0.1:1"), at=1.0)
    store([outcome], at=timezone.now())
    assert WorkerStatus.objects.count() == 0


def test_the_next_poll_works_after_one_was_killed_half_way(worker, valkey_url, monkeypatch):
    """A21: the lock of a killed task ends by itself, and a finding is not raised twice."""
    import redis

    from controlplane.fleet import tasks

    def killed(*args: object, **kwargs: object) -> None:
        raise SystemExit

    for _ in range(3):
        poll_shard([worker.pk])
    monkeypatch.setattr(tasks, "store", killed)
    monkeypatch.setattr("controlplane.fleet.valkey._release", lambda key, token: None)
    with pytest.raises(SystemExit):
        poll_shard([worker.pk])
    monkeypatch.undo()
    keys = [key for key in redis.Redis.from_url(valkey_url).keys("tidemark:lock:*")]
    assert len(keys) == 1
    assert redis.Redis.from_url(valkey_url).pttl(keys[0]) <= 4_000
    redis.Redis.from_url(valkey_url).delete(*keys)
    poll_shard([worker.pk])
    assert WorkerStatus.objects.get().consecutive_failures == 4
    assert Finding.objects.filter(kind="poll_failed").count() == 1


def test_two_ticks_at_once_poll_once(worker, valkey_url):
    from controlplane.fleet.valkey import single_flight

    lock = {"expires_s": 5, "without_valkey": True}
    with single_flight("x", **lock) as first, single_flight("x", **lock) as second:
        assert (first, second) == (True, False)
    with single_flight("x", expires_s=5, without_valkey=True) as again:
        assert again


def test_polls_go_on_without_valkey(worker, settings, free_port):
    settings.REDIS_URL = f"redis://127.0.0.1:{free_port}/0"
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
                                           "CONFIG": {"hosts": [settings.REDIS_URL]}}}  # fmt: skip
    assert poll_shard([worker.pk]) == 0
    assert WorkerStatus.objects.get().consecutive_failures == 1
