"""The router proves its requests to the workers of guarded pools, and to no others (S26)."""

from __future__ import annotations

import msgspec

from router.contract.guard import PROOF_HEADER, PROOF_PERIOD_S, guard_key, proof
from router.contract.ids import PoolId
from router.contract.secrets import FleetKey
from router.contract.snapshot import PoolPolicy
from router.core import proofs as proofs_module
from router.core.proofs import Proofs
from tests.isolation.guard_file import guard
from tests.router.conftest import ALICE_SALT, FLEET, MODEL, StartRouter, chat, snapshot_for, start_router, worker  # noqa: F401
from tests.router.scripted_worker import ScriptedWorker

KEY = FleetKey(bytes(range(32)))
POOL = PoolId("p")
PERIOD = float(PROOF_PERIOD_S * 60_000_000)


def proving(*, epoch: int = 3) -> Proofs:
    proofs = Proofs(KEY)
    proofs.apply({POOL: PoolPolicy(models=("m",), guarded=True), PoolId("q"): PoolPolicy(models=("n",))}, epoch=epoch)
    return proofs


def expected(salt: str, epoch: int, now: float) -> bytes:
    return f"{PROOF_HEADER}: {proof(guard_key(KEY, POOL), salt=salt, epoch=epoch, now=now)}\r\n".encode()


def test_a_proof_serves_every_request_of_a_salt_in_its_period() -> None:
    proofs = proving()
    first = proofs.header(POOL, "s", now=PERIOD)
    assert first == expected("s", 3, PERIOD)
    assert proofs.header(POOL, "s", now=PERIOD + PROOF_PERIOD_S - 1) is first
    assert proofs.header(POOL, "s", now=PERIOD + PROOF_PERIOD_S) == expected("s", 3, PERIOD + PROOF_PERIOD_S) != first


def test_a_snapshot_of_another_epoch_changes_every_proof_at_once() -> None:
    proofs = proving()
    before = proofs.header(POOL, "s", now=PERIOD)
    proofs.apply({POOL: PoolPolicy(models=("m",), guarded=True)}, epoch=4)
    assert proofs.header(POOL, "s", now=PERIOD) == expected("s", 4, PERIOD) != before


def test_a_pool_without_guard_has_no_proofs() -> None:
    proofs = proving()
    assert proofs.guarded == {POOL}
    assert proofs.unsalted(PoolId("q"), now=PERIOD) == {}
    assert proofs.unsalted(POOL, now=PERIOD)[PROOF_HEADER] in expected("", 3, PERIOD).decode()


def test_headers_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr(proofs_module, "HEADERS_MAX", 10)
    proofs = proving()
    for number in range(25):
        proofs.header(POOL, str(number), now=PERIOD)
    assert len(proofs._headers) <= 10


async def test_a_worker_finds_the_routers_proof_valid_for_the_salt_in_the_body(
    start_router: StartRouter,  # noqa: F811 - the imported fixture
    worker: ScriptedWorker,  # noqa: F811 - the imported fixture
) -> None:
    snapshot = snapshot_for([worker.url])
    router = await start_router(
        msgspec.structs.replace(snapshot, pools={POOL: msgspec.structs.replace(snapshot.pools[POOL], guarded=True)})
    )
    forged = {PROOF_HEADER: "1.9.9." + "A" * 43}
    for path in ("/v1/chat/completions", "/v1/completions"):
        body = chat() if "chat" in path else {"model": MODEL, "prompt": "x"}
        assert (await router.post(body, path=path, headers=forged)).status_code == 200
    taken = guard.Proofs([guard_key(FLEET, POOL)])
    for asked in worker.asked:
        assert asked.raw_head.lower().count(PROOF_HEADER.encode()) == 1, "a client's own proof goes no further"
        assert asked.json["cache_salt"] == ALICE_SALT
        taken.check(asked.header(PROOF_HEADER) or "", asked.json["cache_salt"])
    assert len(worker.asked) == 2


async def test_no_proof_is_sent_where_nobody_asks_for_one(
    start_router: StartRouter,  # noqa: F811 - the imported fixture
    worker: ScriptedWorker,  # noqa: F811 - the imported fixture
) -> None:
    router = await start_router(snapshot_for([worker.url]))
    await router.post(chat())
    assert worker.asked[0].header(PROOF_HEADER) is None
