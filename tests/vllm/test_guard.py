"""The worker guard inside a real vLLM server (S26): the router's requests pass, nobody else's do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from controlplane.isolation.canary_run import Subject, run_canaries
from router.contract.guard import PROOF_HEADER, guard_key, proof
from router.contract.ids import PoolId
from router.contract.snapshot import PoolPolicy
from tests.router.conftest import FLEET, RunningRouter, snapshot_for, start_router  # noqa: F401
from tests.vllm.conftest import prompt_of
from tests.vllm.special_workers import ROOT, special_worker

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(500)]
KEY = guard_key(FLEET, PoolId("p"))
GRACE_S = 3
SALT = "s" * 43


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    environment = {
        "PYTHONPATH": str(ROOT / "docker" / "guard"),
        "TIDEMARK_GUARD_KEY": KEY.hex(),
        "TIDEMARK_GUARD_GRACE_S": str(GRACE_S),
    }
    with special_worker(3, "--middleware", "tidemark_guard.TidemarkGuard", **environment) as url:
        yield url


def post(url: str, path: str = "/v1/completions", *, proven: str = "", **body: object) -> tuple[int, str]:
    """(status, the guard's code)."""
    headers = {PROOF_HEADER: proven} if proven else {}
    answer = httpx.post(
        f"{url}{path}", json={"model": "tiny", "prompt": "a", "max_tokens": 1, **body}, headers=headers, timeout=60
    )
    error = answer.json().get("error")
    return answer.status_code, str(error.get("code")) if isinstance(error, dict) else ""


def proof_of(salt: str = SALT, *, epoch: int = 1, key: bytes = KEY, ago_s: float = 0.0) -> str:
    return proof(key, salt=salt, epoch=epoch, now=time.time() - ago_s)


def guarded_snapshot(url: str) -> Any:
    pools = {"p": PoolPolicy(models=("tiny",), block_size=32, guarded=True)}
    return msgspec.structs.replace(snapshot_for([url]), pools=pools)


def test_a_proven_request_is_served(guarded: str) -> None:
    assert post(guarded, cache_salt=SALT, proven=proof_of()) == (200, "")


@pytest.mark.parametrize(
    ("what", "body", "proven", "code"),
    [
        ("direct and unsalted", {}, "", "no_proof"),
        ("direct with a salt", {"cache_salt": SALT}, "", "no_proof"),
        ("unsalted with a proof", {}, proof_of(), "no_salt"),
        ("another salt", {"cache_salt": "t" * 43}, proof_of(), "foreign_proof"),
        ("another pool", {"cache_salt": SALT}, proof_of(key=guard_key(FLEET, PoolId("q"))), "foreign_proof"),
        ("an old proof", {"cache_salt": SALT}, proof_of(ago_s=600), "old_proof"),
    ],
)
def test_it_refuses(guarded: str, what: str, body: dict[str, object], proven: str, code: str) -> None:
    assert post(guarded, proven=proven, **body) == (403, code), what


@pytest.mark.parametrize("path", ["/invocations", "/inference/v1/generate", "/v1/completions/render", "/detokenize"])
def test_what_vllm_leaves_open_is_closed(guarded: str, path: str) -> None:
    assert post(guarded, path, cache_salt=SALT, proven=proof_of()) == (403, "not_offered")


@pytest.mark.parametrize("path", ["/health", "/metrics", "/metrics/?name[]=vllm:num_requests_running", "/v1/models",
                                  "/version", "/kv_event_sources"])  # fmt: skip
def test_what_pollers_read_stays_open(guarded: str, path: str) -> None:
    assert httpx.get(f"{guarded}{path}", timeout=30, follow_redirects=True).status_code == 200


def test_the_routers_own_questions_pass_with_a_proof_without_salt(guarded: str) -> None:
    assert post(guarded, "/tokenize", proven=proof_of("")) == (200, "")
    assert post(guarded, "/tokenize") == (403, "no_proof")


def test_canaries_with_proofs_are_green_and_the_unsalted_is_refused(guarded: str) -> None:
    names = ("chat", "completions", "responses", "messages")
    found = run_canaries(
        Subject(guarded, "tiny", 32, guarded=True), networks=("127.0.0.0/8",), endpoints=names, proof_of=proof_of
    )
    assert {each.endpoint: each.judgement.verdict for each in found} == dict.fromkeys(names, "green")
    assert all(each.legs.unsalted.guarded for each in found)


async def test_the_router_serves_through_the_guard_and_reuse_works(
    guarded: str,
    start_router: Any,  # noqa: F811 - the imported fixture
) -> None:
    router: RunningRouter = await start_router(guarded_snapshot(guarded))
    body = {"model": "tiny", "messages": [{"role": "user", "content": prompt_of(200, seed=5)}], "max_tokens": 2}
    first, second = await router.post(body), await router.post(body)
    assert (first.status_code, second.status_code) == (200, 200), first.text
    assert second.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 100
    streamed = await router.post({**body, "stream": True})
    assert streamed.content.rstrip().endswith(b"data: [DONE]")


async def test_a_router_that_does_not_prove_is_refused(
    guarded: str,
    start_router: Any,  # noqa: F811 - the imported fixture
) -> None:
    snapshot = guarded_snapshot(guarded)
    unguarded = {"p": msgspec.structs.replace(snapshot.pools["p"], guarded=False)}
    router: RunningRouter = await start_router(msgspec.structs.replace(snapshot, pools=unguarded))
    answer = await router.post({"model": "tiny", "prompt": "a", "max_tokens": 1}, path="/v1/completions")
    assert answer.status_code == 502


def test_a_client_that_leaves_frees_the_engine(guarded: str) -> None:
    """The guard hands the client's leaving on."""
    body = {"model": "tiny", "prompt": "a", "max_tokens": 4000, "ignore_eos": True, "stream": True, "cache_salt": SALT}
    with httpx.stream(
        "POST", f"{guarded}/v1/completions", json=body, headers={PROOF_HEADER: proof_of()}, timeout=60
    ) as answer:
        assert next(answer.iter_bytes())
    deadline = time.monotonic() + 10
    while _running(guarded) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert _running(guarded) == 0


def test_a_revoked_epoch_is_refused_after_its_grace(guarded: str) -> None:
    """Last in the file: the worker's lowest epoch stays."""
    assert post(guarded, cache_salt=SALT, proven=proof_of(epoch=7))[0] == 200
    assert post(guarded, cache_salt=SALT, proven=proof_of(epoch=6))[0] == 200, "within the grace"
    time.sleep(GRACE_S + 0.2)
    assert post(guarded, cache_salt=SALT, proven=proof_of(epoch=6)) == (403, "revoked_epoch")
    assert post(guarded, cache_salt=SALT, proven=proof_of(epoch=7))[0] == 200


def _running(url: str) -> float:
    page = httpx.get(f"{url}/metrics", timeout=30).text
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith("vllm:num_requests_running"))
