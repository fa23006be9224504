"""Does a prompt come faster when another salt has it cached? A worker is timed (S9). Judging is pure; `run_audit` asks.

Three arms of prompts that are equal in tokens (the same words, shuffled) and never seen before:

    own       (B, P) after (B, P)    a hit: shows that a hit can be told from a miss here at all
    foreign   (B, P) after (A, P)    must be as slow as unknown
    unknown   (B, P) alone           a miss

TTFT is the first body byte of a stream. The three are asked in random order right after their priming, so that load and
eviction meet all of them alike. It is a second witness: who lies about cached tokens cannot lie about time.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx

from controlplane.fleet.addresses import AddressRefused, Pinned, parse_endpoint, pin
from controlplane.fleet.http_page import new_client
from controlplane.isolation.canary import ENDPOINTS, GREEN, INCONCLUSIVE, RED, WORDS, Judgement, body_for, salts_for
from controlplane.isolation.canary_run import ProofOf, Subject, no_proof
from controlplane.isolation.statistics import Auc, auc_of
from router.contract.guard import PROOF_HEADER

SAMPLES_MIN = 50
"""Of each arm: then an arm that is always faster is told with an interval of 0.09."""
PROMPT_WORDS = 1500
"""Prefill of so many tokens stands out from scheduling and network."""
ENDPOINT = "completions"
REQUEST_S = 30.0
ARMS = ("own", "foreign", "unknown")


@dataclass(slots=True)
class Samples:
    """TTFT in milliseconds; the arms grow together."""

    own: list[float] = field(default_factory=list)
    foreign: list[float] = field(default_factory=list)
    unknown: list[float] = field(default_factory=list)
    failure: str = ""
    """Why it ended early."""


@dataclass(frozen=True, slots=True)
class Report:
    judgement: Judgement
    samples: int
    """Of each arm."""
    foreign: Auc | None = None
    """How surely `foreign` is faster than `unknown`: 0.5 = not at all."""
    own: Auc | None = None
    own_ms: float | None = None
    foreign_ms: float | None = None
    unknown_ms: float | None = None
    """Medians."""


def judge_times(samples: Samples) -> Report:
    """Green needs the power to see a leak: own hits must stand out, and foreign ones lie clearly below them."""
    count = min(len(samples.own), len(samples.foreign), len(samples.unknown))
    if count < SAMPLES_MIN:
        why = samples.failure or f"{SAMPLES_MIN} samples of each arm are needed"
        return Report(Judgement(INCONCLUSIVE, f"{count} samples of each arm were taken: {why}."), count)
    own, foreign = auc_of(samples.own, samples.unknown), auc_of(samples.foreign, samples.unknown)
    medians = [statistics.median(each) for each in (samples.own, samples.foreign, samples.unknown)]
    return Report(_judged(own, foreign), count, foreign, own, *medians)


def _judged(own: Auc, foreign: Auc) -> Judgement:
    words = f"AUC {foreign.value:.2f} ({foreign.low:.2f}–{foreign.high:.2f}), of own hits {own.value:.2f}"
    if foreign.low > 0.5:
        return Judgement(RED, f"Prompts that another salt has cached come faster than unknown ones: {words}.")
    if own.low <= 0.5:
        return Judgement(INCONCLUSIVE, f"Own hits are not faster than misses here, so time tells nothing: {words}.")
    if foreign.high >= own.low:
        return Judgement(INCONCLUSIVE, f"Too few samples to tell foreign prompts from own hits: {words}.")
    return Judgement(GREEN, f"Prompts that another salt has cached are as slow as unknown ones: {words}.")


def run_audit(
    subject: Subject,
    *,
    networks: Sequence[str],
    total_s: float,
    api_key: str = "",
    proof_of: ProofOf = no_proof,
    samples: int = SAMPLES_MIN,
    words: int = PROMPT_WORDS,
    rng: random.Random | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Samples:
    """Takes at most `total_s`; never raises for what the worker does. Not for code inside an event loop."""
    try:
        pinned = pin(parse_endpoint(subject.url, schemes=("http", "https")), networks=networks)
    except AddressRefused as error:
        return Samples(failure=str(error))
    timer = _Timer(subject, pinned, api_key, proof_of, rng or random.SystemRandom(), words, clock)
    return asyncio.run(timer.run(samples, total_s))


@dataclass(slots=True)
class _Timer:
    subject: Subject
    pinned: Pinned
    api_key: str
    proof_of: ProofOf
    rng: random.Random
    words: int
    clock: Callable[[], float]

    async def run(self, samples: int, total_s: float) -> Samples:
        found = Samples()
        try:
            async with asyncio.timeout(total_s), new_client(timeout_s=REQUEST_S) as client:
                await self._round(client)  # Connections and kernels are warm afterwards; it counts in no arm.
                for _ in range(samples):
                    times = await self._round(client)
                    for arm in ARMS:
                        getattr(found, arm).append(times[arm])
        except TimeoutError:
            found.failure = f"it took longer than {total_s:.0f} s"
        except (httpx.HTTPError, _Unusable) as error:
            found.failure = str(error) or type(error).__name__
        return found

    async def _round(self, client: httpx.AsyncClient) -> dict[str, float]:
        """Milliseconds of one request of each arm."""
        salt, other = salts_for(self.rng)
        texts = {arm: self._text() for arm in ARMS}
        await self._ttft_ms(client, texts["own"], salt)
        await self._ttft_ms(client, texts["foreign"], other)
        times = {}
        for arm in self.rng.sample(ARMS, len(ARMS)):
            times[arm] = await self._ttft_ms(client, texts[arm], salt)
        return times

    def _text(self) -> str:
        """The same words in another order: equal in tokens, and different from the first block on."""
        each = -(-self.words // len(WORDS))
        pool = list(WORDS) * each
        self.rng.shuffle(pool)
        return " " + " ".join(pool)

    async def _ttft_ms(self, client: httpx.AsyncClient, text: str, salt: str) -> float:
        headers = {"host": self.pinned.host_header, "accept-encoding": "identity"}
        if self.api_key:
            headers["authorization"] = f"Bearer {self.api_key}"
        if proof := self.proof_of(salt):
            headers[PROOF_HEADER] = proof
        request = client.build_request(
            "POST",
            self.pinned.url + ENDPOINTS[ENDPOINT],
            headers=headers,
            json=body_for(ENDPOINT, model=self.subject.model, text=text, salt=salt, stream=True),
            extensions={"sni_hostname": self.pinned.server_name},
        )
        began = self.clock()
        answer = await client.send(request, stream=True)
        try:
            if answer.status_code != 200:
                raise _Unusable(f"the worker answered with status {answer.status_code}")
            first_at = None
            async for chunk in answer.aiter_raw():
                # The rest is one token: it is read too, so that the connection serves the next request.
                first_at = first_at or (self.clock() if chunk else None)
            if first_at is None:
                raise _Unusable("the worker's stream was empty")
            return (first_at - began) * 1000
        finally:
            await answer.aclose()


class _Unusable(Exception):
    """An answer that cannot be timed."""
