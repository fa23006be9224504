"""Canaries on real workers (S7): green with salts, red where a hop strips them, never green without caching."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controlplane.isolation.canary import ENDPOINTS
from controlplane.isolation.canary_run import Outcome, Subject, run_canaries
from tests.isolation.tampering import half_salt, tampering, without_salt
from tests.vllm.conftest import WORKER_URLS
from tests.vllm.special_workers import special_worker

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(500)]
NETWORKS = ("127.0.0.0/8",)
GENERATES = ("chat", "completions", "responses", "messages")


def ask(url: str, *endpoints: str) -> list[Outcome]:
    found = run_canaries(Subject(url, "tiny", 32), networks=NETWORKS, endpoints=endpoints or GENERATES)
    for each in found:
        print(f"{each.endpoint}: {each.judgement.verdict} in {each.duration_ms:.0f} ms: {each.judgement.reason}")
    return found


def verdicts(found: list[Outcome]) -> dict[str, str]:
    return {each.endpoint: each.judgement.verdict for each in found}


@pytest.fixture(scope="module")
def uncached() -> Iterator[str]:
    with special_worker(4, "--no-enable-prefix-caching") as url:
        yield url


def test_every_endpoint_that_generates_is_green(workers: tuple[str, ...]) -> None:
    for url in workers:
        found = ask(url)
        assert verdicts(found) == dict.fromkeys(GENERATES, "green")
        assert all((each.legs.own.cached or 0) >= 3 * 32 for each in found)


def test_an_endpoint_that_is_not_offered_is_said_to_be_so(workers: tuple[str, ...]) -> None:
    assert verdicts(ask(WORKER_URLS[0], "embeddings")) == {"embeddings": "not_offered"}


@pytest.mark.parametrize("stripped", GENERATES)
def test_the_endpoint_whose_salts_a_proxy_strips_is_red_and_no_other(workers: tuple[str, ...], stripped: str) -> None:
    with tampering(WORKER_URLS[0], {ENDPOINTS[stripped]: without_salt}) as proxy:
        assert verdicts(ask(proxy)) == {name: "red" if name == stripped else "green" for name in GENERATES}


def test_a_proxy_that_shortens_salts_is_red(workers: tuple[str, ...]) -> None:
    with tampering(WORKER_URLS[0], {ENDPOINTS["chat"]: half_salt}) as proxy:
        assert verdicts(ask(proxy, "chat")) == {"chat": "red"}


def test_a_worker_without_caching_is_inconclusive(uncached: str) -> None:
    assert verdicts(ask(uncached)) == dict.fromkeys(GENERATES, "inconclusive")
