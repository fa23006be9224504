"""Sends the canaries of one worker and reads the answers: to the pinned address, bounded, one after another.

Never raises for anything a worker does: what cannot be told is inconclusive.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import httpx
import msgspec

from controlplane.fleet.addresses import AddressRefused, Pinned, parse_endpoint, pin
from controlplane.fleet.http_page import PageRefused, fetch, new_client, text_of
from controlplane.fleet.metrics_page import PAGE_BYTES_MAX, read_metrics_page
from controlplane.isolation.canary import (
    ENDPOINTS,
    INCONCLUSIVE,
    Judgement,
    Leg,
    Legs,
    body_for,
    judge,
    prompt_for,
    salts_for,
    usage_of,
)
from router.contract.guard import GUARD_ERROR_TYPE, PROOF_HEADER

REQUEST_S = 10.0
TOTAL_S = 30.0
"""Of one worker; a quiet one takes about a second."""
TRIES = 3
ANSWER_BYTES_MAX = 256 * 1024
TELLS_NO_USAGE = frozenset(("embeddings",))
"""Endpoints whose answers never name cached tokens: the worker's own counters are read before and after instead."""

ProofOf = Callable[[str], str]
"""Salt → value of the proof header; "" for a pool without guard."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The worker that is asked."""

    url: str
    model: str
    block_size: int
    guarded: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    endpoint: str
    legs: Legs
    judgement: Judgement
    duration_ms: float


def no_proof(salt: str) -> str:
    return ""


def run_canaries(
    subject: Subject,
    *,
    networks: Sequence[str],
    api_key: str = "",
    proof_of: ProofOf = no_proof,
    endpoints: Sequence[str] = tuple(ENDPOINTS),
    rng: random.Random | None = None,
) -> list[Outcome]:
    """One outcome for each endpoint, in their order. Takes at most TOTAL_S. Not for code inside an event loop."""
    try:
        pinned = pin(parse_endpoint(subject.url, schemes=("http", "https")), networks=networks)
    except AddressRefused as error:
        return [_unasked(endpoint, str(error)) for endpoint in endpoints]
    asker = _Asker(subject, pinned, api_key, proof_of, rng or random.SystemRandom(), time.monotonic() + TOTAL_S)
    return asyncio.run(_all(asker, endpoints))


async def _all(asker: _Asker, endpoints: Sequence[str]) -> list[Outcome]:
    found: list[Outcome] = []
    async with new_client(timeout_s=REQUEST_S) as client:
        for endpoint in endpoints:
            silent = next((each for each in found if not each.legs.prime.status), None)
            # Who is silent on one endpoint would hold up everybody else's canaries on the next.
            outcome = _unasked(endpoint, silent.legs.prime.refusal) if silent else await asker.canary(client, endpoint)
            found.append(outcome)
    return found


@dataclass(slots=True)
class _Asker:
    subject: Subject
    pinned: Pinned
    api_key: str
    proof_of: ProofOf
    rng: random.Random
    ends_at: float
    """Monotonic seconds."""
    counts: tuple[float, float] | None = None
    """The worker's (query tokens, hit tokens) before the next request, where they are read."""

    async def canary(self, client: httpx.AsyncClient, endpoint: str) -> Outcome:
        """Another prompt is tried where one was evicted: a busy worker's cache turns over in seconds."""
        began = time.perf_counter()
        for _ in range(TRIES):
            legs = await self._legs(client, endpoint)
            judgement = judge(legs, guarded=self.subject.guarded)
            if judgement.verdict != INCONCLUSIVE or legs.own.status != 200:
                break
        return Outcome(endpoint, legs, judgement, (time.perf_counter() - began) * 1000)

    async def _legs(self, client: httpx.AsyncClient, endpoint: str) -> Legs:
        if endpoint in TELLS_NO_USAGE:
            self.counts = await self._counters(client)
        text = prompt_for(self.subject.block_size, self.rng)
        salt, other = salts_for(self.rng)
        prime = await self._ask(client, endpoint, text, salt)
        if prime.status != 200:
            return Legs(prime)
        foreign = await self._ask(client, endpoint, text, other)
        unsalted = await self._ask(client, endpoint, text, None)
        own = await self._ask(client, endpoint, text, salt)
        head = None
        if unsalted.cached:
            head = await self._ask(client, endpoint, prompt_for(self.subject.block_size, self.rng), None)
        return Legs(prime, foreign, own, unsalted, head)

    async def _ask(self, client: httpx.AsyncClient, endpoint: str, text: str, salt: str | None) -> Leg:
        body = body_for(endpoint, model=self.subject.model, text=text, salt=salt)
        headers = {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        if salt is not None and (proof := self.proof_of(salt)):
            headers[PROOF_HEADER] = proof
        try:
            async with asyncio.timeout(max(0.0, min(REQUEST_S, self.ends_at - time.monotonic()))):
                page = await fetch(
                    client, self.pinned, ENDPOINTS[endpoint], bytes_max=ANSWER_BYTES_MAX, method="POST",
                    headers=headers, json=body,
                )  # fmt: skip
        except TimeoutError:
            return Leg(status=0, refusal="no answer in time")
        except PageRefused as error:
            return Leg(status=0, refusal=str(error))
        leg = _leg(endpoint, page.status, _decoded(page.body))
        if endpoint in TELLS_NO_USAGE and leg.status == 200:
            return await self._counted(client, leg)
        return leg

    async def _counted(self, client: httpx.AsyncClient, leg: Leg) -> Leg:
        """Cached tokens by the worker's counters: told only when they moved by this prompt and nothing else."""
        before, self.counts = self.counts, await self._counters(client)
        if before is None or self.counts is None or leg.prompt_tokens is None:
            return leg
        queries, hits = self.counts[0] - before[0], self.counts[1] - before[1]
        return replace(leg, cached=int(hits)) if queries == leg.prompt_tokens and hits >= 0 else leg

    async def _counters(self, client: httpx.AsyncClient) -> tuple[float, float] | None:
        try:
            async with asyncio.timeout(max(0.0, min(REQUEST_S, self.ends_at - time.monotonic()))):
                page = await fetch(client, self.pinned, "/metrics", bytes_max=PAGE_BYTES_MAX)
            found = read_metrics_page(text_of(page)).counters
        except (TimeoutError, PageRefused):
            return None
        queries, hits = found.get("prefix_query_tokens"), found.get("prefix_hit_tokens")
        return None if queries is None or hits is None else (queries, hits)


def _leg(endpoint: str, status: int, answer: object) -> Leg:
    if status == 200:
        prompt_tokens, cached = usage_of(endpoint, answer)
        return Leg(200, cached, prompt_tokens)
    error = answer.get("error") if isinstance(answer, dict) else None
    told = error if isinstance(error, dict) else {}
    if status == 404 and told.get("param") == "model":
        return Leg(status=0, refusal="the worker does not serve the pool's model")
    if told.get("type") == GUARD_ERROR_TYPE:
        return Leg(status=status, refusal=f"the worker's guard says {str(told.get('code'))[:40]}", guarded=True)
    return Leg(status=status, refusal=f"status {status}")


def _unasked(endpoint: str, why: str) -> Outcome:
    leg = Leg(status=0, refusal=why)
    return Outcome(endpoint, Legs(leg), Judgement(INCONCLUSIVE, why), 0.0)


def _decoded(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
