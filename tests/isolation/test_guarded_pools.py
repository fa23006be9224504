"""The control plane beside guarded workers (S26): canaries, live test and polls carry proofs; open ones are found."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command

from controlplane.fleet.models import Finding, PoolModel, Worker, WorkerPool
from controlplane.fleet.poll import poll_workers
from controlplane.fleet.poll_store import load_targets
from controlplane.fleet.services import test_worker as live_test
from controlplane.isolation import canary_services
from controlplane.revocations.services import raise_epoch
from router.contract.guard import guard_key
from router.contract.ids import PoolId
from tests.fleet.simulated import BLOCK_SIZE, worker
from tests.isolation import tampering
from tests.isolation.guard_file import guard

KEY = guard_key(settings.FLEET_KEY, PoolId("sim"))


@pytest.fixture(scope="module")
def simulated() -> Iterator[str]:
    with worker(events=False) as url:
        yield url


def admit(path: str, proof: str, body: bytes) -> str:
    """As the guard in a worker does."""
    try:
        guard.Proofs([KEY]).check(proof, guard._salt_of(body))
    except guard.Refused as refusal:
        return str(refusal.code)
    return ""


@pytest.fixture
def pool(db: None) -> WorkerPool:
    made = WorkerPool.objects.create(slug="sim", block_size=BLOCK_SIZE, guarded=True)
    PoolModel.objects.create(pool=made, name="sim")
    return made


@pytest.fixture
def guarded(pool: WorkerPool, simulated: str) -> Iterator[Worker]:
    with tampering.tampering(simulated, {}, admit=admit) as url:
        yield Worker.objects.create(pool=pool, slug="w1", url=url)


@pytest.fixture
def unguarded(pool: WorkerPool, simulated: str) -> Worker:
    return Worker.objects.create(pool=pool, slug="w2", url=simulated)


def check_of(worker_row: Worker, name: str) -> bool | None:
    worker_row.refresh_from_db()
    return next(check["ok"] for check in worker_row.test_report if check["check"] == name)


def test_canaries_pass_the_guard_and_show_that_the_unsalted_do_not(guarded: Worker) -> None:
    found = {result.endpoint: result for result in canary_services.run_for(guarded.pk)}
    for name in ("chat", "completions", "responses", "messages"):
        assert found[name].verdict == "green", found[name].reason
        assert found[name].unsalted_cached is None, "it was refused"


def test_a_worker_of_a_guarded_pool_that_serves_anybody_is_a_leak(unguarded: Worker) -> None:
    found = {result.endpoint: result.verdict for result in canary_services.run_for(unguarded.pk)}
    assert found["chat"] == "red"
    assert Finding.objects.filter(kind="canary_leaks", subject="sim/w2", severity="critical").exists()


def test_the_live_test_passes_the_guard_and_tries_it(guarded: Worker, unguarded: Worker) -> None:
    live_test("sim/w1", actor="user:alice")
    assert (check_of(guarded, "guard"), check_of(guarded, "usage_details")) == (True, True)
    live_test("sim/w2", actor="user:alice")
    assert check_of(unguarded, "guard") is False
    assert Finding.objects.filter(kind="guard_open", subject="sim/w2", resolved_at=None).exists()


def test_polls_tell_the_guard_of_the_epoch(guarded: Worker) -> None:
    raise_epoch(to=41)
    tampering.proofs_polled.clear()
    outcomes = asyncio.run(poll_workers(load_targets([guarded.pk]), networks=("127.0.0.0/8",), deadline_s=1.9))
    assert outcomes[0].ok
    assert tampering.proofs_polled and all(proof.startswith("1.41.") for proof in tampering.proofs_polled)
    for proof in tampering.proofs_polled:
        guard.Proofs([KEY]).check(proof, "")


def test_polls_of_other_pools_carry_none(pool: WorkerPool, guarded: Worker) -> None:
    WorkerPool.objects.update(guarded=False)
    assert load_targets([guarded.pk])[0].proof == ""


def test_the_key_of_a_pools_guard_is_printed_for_its_workers(pool: WorkerPool) -> None:
    out = io.StringIO()
    call_command("guard_key", "sim", stdout=out)
    assert out.getvalue().strip() == KEY.hex()
    with pytest.raises(CommandError):
        call_command("guard_key", "none")
