"""Canaries against simulated workers: results, findings, when a worker is due (S7)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import httpx
import pytest
from django.utils import timezone

from controlplane.audit.models import AuditEntry
from controlplane.fleet.models import Finding, PoolModel, Worker, WorkerPool, WorkerStatus
from controlplane.fleet.valkey import single_flight
from controlplane.isolation import canary_run, canary_services, tasks
from controlplane.isolation.canary import ENDPOINTS
from controlplane.isolation.canary_run import Subject, run_canaries
from controlplane.isolation.canary_selectors import canary_matrix, workers_due
from controlplane.isolation.models import CanaryResult
from tests.fleet.simulated import BLOCK_SIZE, worker
from tests.isolation.tampering import fresh_salt, half_salt, tampering, without_salt

NETWORKS = ("127.0.0.0/8",)
GENERATES = ("chat", "completions", "responses", "messages")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with worker(events=False) as found:
        yield found


@pytest.fixture
def sick(url: str) -> Iterator[object]:
    """Sets faults of the simulated worker; all are taken back."""

    def set_faults(**faults: object) -> None:
        httpx.post(f"{url}/sim/faults", json=faults).raise_for_status()

    yield set_faults
    set_faults(ignore_salt=False, status=None)
    httpx.post(f"{url}/reset_prefix_cache").raise_for_status()


@pytest.fixture
def row(db: None, url: str) -> Worker:
    pool = WorkerPool.objects.create(slug="sim", block_size=BLOCK_SIZE)
    PoolModel.objects.create(pool=pool, name="sim")
    return Worker.objects.create(pool=pool, slug="w1", url=url)


def verdicts(found: list) -> dict[str, str]:
    return {each.endpoint: each.verdict if hasattr(each, "verdict") else each.judgement.verdict for each in found}


def test_a_worker_that_keeps_salts_apart_is_green_on_every_endpoint_that_generates(row: Worker) -> None:
    found = canary_services.run_for(row.pk)
    assert {verdicts(found)[name] for name in GENERATES} == {"green"}
    for result in found:
        if result.verdict == "green":
            assert (result.prime_cached, result.foreign_cached, result.unsalted_cached) == (0, 0, 0)
            assert result.own_cached is not None and result.own_cached >= 3 * BLOCK_SIZE
    assert not Finding.objects.filter(kind="canary_leaks").exists()


def test_a_worker_that_ignores_salts_is_red_and_a_critical_finding_until_it_is_cured(row: Worker, sick) -> None:
    sick(ignore_salt=True)
    found = canary_services.run_for(row.pk)
    assert {verdicts(found)[name] for name in GENERATES} == {"red"}
    finding = Finding.objects.get(kind="canary_leaks", resolved_at=None)
    assert (finding.subject, finding.severity) == ("sim/w1", "critical")
    sick(ignore_salt=False, status=500)
    canary_services.run_for(row.pk)
    assert Finding.objects.filter(kind="canary_leaks", resolved_at=None).exists(), "silence is no cure"
    sick(status=None)
    canary_services.run_for(row.pk)
    assert not Finding.objects.filter(kind="canary_leaks", resolved_at=None).exists()


def test_a_worker_without_caching_is_never_green(url: str) -> None:
    """Each request under a salt of its own: to the asker, a worker that caches nothing."""
    with tampering(url, {path: fresh_salt for path in ENDPOINTS.values()}) as proxy:
        found = run_canaries(Subject(proxy, "sim", BLOCK_SIZE), networks=NETWORKS, endpoints=GENERATES)
    assert {each.judgement.verdict for each in found} == {"inconclusive"}
    assert all("caching is off" in each.judgement.reason for each in found)


@pytest.mark.parametrize("endpoint", GENERATES)
def test_one_endpoint_that_loses_its_salts_is_red_and_the_others_are_green(url: str, endpoint: str) -> None:
    with tampering(url, {ENDPOINTS[endpoint]: without_salt}) as proxy:
        found = run_canaries(Subject(proxy, "sim", BLOCK_SIZE), networks=NETWORKS, endpoints=GENERATES)
    assert verdicts(found) == {name: "red" if name == endpoint else "green" for name in GENERATES}


def test_a_salt_cut_to_half_is_red(url: str) -> None:
    with tampering(url, {ENDPOINTS["chat"]: half_salt}) as proxy:
        found = run_canaries(Subject(proxy, "sim", BLOCK_SIZE), networks=NETWORKS, endpoints=("chat",))
    assert verdicts(found) == {"chat": "red"}


def test_embeddings_are_judged_by_the_workers_counters(url: str, sick) -> None:
    subject = Subject(url, "sim", BLOCK_SIZE)
    assert verdicts(run_canaries(subject, networks=NETWORKS, endpoints=("embeddings",))) == {"embeddings": "green"}
    sick(ignore_salt=True)
    assert verdicts(run_canaries(subject, networks=NETWORKS, endpoints=("embeddings",))) == {"embeddings": "red"}


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://192.0.2.1:80"])
def test_a_worker_that_cannot_be_asked_is_inconclusive(url: str) -> None:
    found = run_canaries(Subject(url, "sim", 16), networks=NETWORKS, endpoints=GENERATES)
    assert {each.judgement.verdict for each in found} == {"inconclusive"}


def test_a_model_that_the_worker_lacks_is_inconclusive_not_absent(url: str) -> None:
    found = run_canaries(Subject(url, "other", 16), networks=NETWORKS, endpoints=("chat",))
    assert found[0].judgement.verdict == "inconclusive"


def test_the_matrix_shows_the_newest_and_says_when_it_is_old(row: Worker) -> None:
    assert all(cell.result is None for cell in canary_matrix(now=timezone.now())[0].cells)
    canary_services.run_for(row.pk)
    canary_services.run_for(row.pk)
    assert CanaryResult.objects.filter(newest=True).count() == CanaryResult.objects.count() / 2
    later = canary_matrix(now=timezone.now() + timedelta(hours=3))[0]
    assert later.checked_at is not None and all(cell.is_old for cell in later.cells)
    assert not any(cell.is_old for cell in canary_matrix(now=timezone.now())[0].cells)


def test_a_canary_by_hand_is_audited(row: Worker) -> None:
    canary_services.run_by_hand("sim/w1", actor="user:alice")
    entry = AuditEntry.objects.get(action="worker.canary")
    assert entry.after is not None and entry.after["chat"] == "green"


class TestDue:
    """A worker is due at once when it has joined or restarted, hourly otherwise, sooner after bad news."""

    @pytest.fixture
    def known(self, pool: WorkerPool) -> Worker:
        return Worker.objects.get()

    def asked(self, worker: Worker, verdict: str, minutes: float) -> None:
        CanaryResult.objects.all().delete()
        at = timezone.now() - timedelta(minutes=minutes)
        CanaryResult.objects.create(
            worker=worker, endpoint="chat", model="m", checked_at=at, verdict=verdict, reason="", duration_ms=1
        )

    def test_after_joining(self, known: Worker) -> None:
        assert workers_due(now=timezone.now()) == [known.pk]

    @pytest.mark.parametrize(
        ("verdict", "minutes", "due"),
        [("green", 59, False), ("green", 61, True), ("red", 4, False), ("red", 6, True), ("inconclusive", 16, True)],
    )
    def test_by_what_was_said_last(self, known: Worker, verdict: str, minutes: float, due: bool) -> None:
        self.asked(known, verdict, minutes)
        assert (workers_due(now=timezone.now()) == [known.pk]) is due

    def test_after_a_restart(self, known: Worker) -> None:
        self.asked(known, "green", 10)
        started = (timezone.now() - timedelta(minutes=5)).timestamp()
        WorkerStatus.objects.create(worker=known, counters={"started_at": started})
        assert workers_due(now=timezone.now()) == [known.pk]

    def test_only_ready_workers_with_a_model(self, known: Worker) -> None:
        Worker.objects.update(state="drain")
        assert workers_due(now=timezone.now()) == []
        Worker.objects.update(state="ready")
        PoolModel.objects.all().delete()
        assert workers_due(now=timezone.now()) == []


def test_old_results_go_and_the_newest_stay(row: Worker) -> None:
    canary_services.run_for(row.pk)
    canary_services.run_for(row.pk)
    far = timezone.now() + timedelta(days=31)
    before = CanaryResult.objects.count()
    assert canary_services.forget_old(now=far) == before / 2
    assert not CanaryResult.objects.filter(newest=False).exists()


def test_a_worker_that_is_silent_on_one_endpoint_is_not_waited_for_on_the_next(url: str, sick, monkeypatch) -> None:
    monkeypatch.setattr(canary_run, "REQUEST_S", 0.5)
    sick(hang=True)
    try:
        began = time.monotonic()
        found = run_canaries(Subject(url, "sim", BLOCK_SIZE), networks=NETWORKS, endpoints=GENERATES)
    finally:
        sick(hang=False)
    assert time.monotonic() - began < 2 * 0.5 + 1
    assert {each.judgement.verdict for each in found} == {"inconclusive"}


class TestTheTick:
    """Each minute's share of time, one probe at a time: polls go on beside it."""

    @pytest.fixture
    def asked(self, monkeypatch) -> list[int]:
        found: list[int] = []
        monkeypatch.setattr(canary_services, "run_for", lambda pk: found.append(pk) or [])
        monkeypatch.setattr(tasks, "announce", lambda what: None)
        return found

    def test_it_asks_whoever_is_due(self, pool: WorkerPool, valkey_url: str, asked: list[int]) -> None:
        assert tasks.canaries_due() == 1
        assert asked == [Worker.objects.get().pk]

    def test_it_stops_when_its_time_is_over(
        self, pool: WorkerPool, valkey_url: str, asked: list[int], monkeypatch
    ) -> None:
        monkeypatch.setattr(tasks, "CANARIES_S", -1.0)
        assert tasks.canaries_due() == 0 and asked == []

    def test_it_waits_for_other_probes(self, pool: WorkerPool, valkey_url: str, asked: list[int]) -> None:
        with single_flight(tasks.PROBES, expires_s=60, without_valkey=False) as mine:
            assert mine and tasks.canaries_due() == 0
        assert tasks.canaries_due() == 1
