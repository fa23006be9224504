"""`python -m simulator claims`: what articles claim of prefix-aware routing, measured on set-ups that are stated here.

The articles give figures without traces or hardware. Each claim has a set-up of ours whose free parameter (how many
document sets there are) puts the baseline near the article's; what the routing core then makes of it is the answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from statistics import mean, stdev

from simulator.fleet.engine import FleetEngine
from simulator.fleet.generated.kinds import Kind, KnowledgeBase, Users
from simulator.fleet.generated.prompts import Prompt, Segment
from simulator.fleet.generated.sessions import SessionWorkload
from simulator.fleet.hardware import H100_8B, H100_32B, H200_8B, PROFILES
from simulator.fleet.measure import RunResult
from simulator.fleet.policies import POLICIES
from simulator.fleet.run import FleetRun
from simulator.fleet.workload import Request

SEEDS = (1, 2, 3, 4, 5)
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Student's t, 97.5 %, by the number of seeds (degrees of freedom + 1)."""
NEAR = 0.1
"""An article's figure is met within this share of it."""
BASELINE, OURS = "round_robin", "tidemark"


@dataclass(frozen=True, slots=True)
class Setup:
    kind: Kind
    profile: str
    workers: int
    load: float
    requests: int


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    unit: str
    article: tuple[float, float] | None
    """What it says, as a range; None = it has no such figure."""
    mean: float
    low: float
    high: float
    """95 % interval over the seeds."""

    @property
    def met(self) -> bool | None:
        """Whether the interval touches the article's range, widened by NEAR; None where there is nothing to meet."""
        if self.article is None:
            return None
        low, high = self.article
        return self.high >= low * (1 - NEAR) and self.low <= high * (1 + NEAR)


@dataclass(frozen=True, slots=True)
class Claim:
    id: str
    says: str
    setup: str
    figures: tuple[Figure, ...]
    why: str


LONG_DOCUMENTS = Setup(
    KnowledgeBase(tenants=160, documents=1, rules_tokens=2_048, document_tokens=98_000, zipf=0.6),
    H200_8B.name,
    workers=8,
    load=0.05,
    requests=1_000,
)
"""160 documents are 16M tokens: a worker's cache holds 17 of them, the fleet's together nearly all."""

MIXED = Setup(
    KnowledgeBase(
        tenants=125, documents=1, rules_tokens=1_024, document_tokens=14_336, question_tokens=4_400, zipf=0.85
    ),
    H100_8B.name,
    workers=8,
    load=0.3,
    requests=1_500,
)
"""A fifth of each prompt is its own, so that no routing can hit more than four fifths."""

MANY_USERS = Setup(Users(), H100_32B.name, workers=8, load=0.5, requests=5_000)


def claims(*, seeds: tuple[int, ...] = SEEDS, processes: int = 1, progress: Callable[[int, int], None]) -> list[Claim]:
    """All of them. Deterministic, whatever the number of processes."""
    setups = (LONG_DOCUMENTS, MIXED, MANY_USERS)
    cases = [(setup, policy, seed) for setup in setups for policy in (BASELINE, OURS) for seed in seeds]
    results: dict[tuple[int, str], list[RunResult]] = {}
    for number, ((setup, policy, _), result) in enumerate(zip(cases, _run_all(cases, processes), strict=True), start=1):
        results.setdefault((setups.index(setup), policy), []).append(result)
        progress(number, len(cases))
    return [
        _long_documents(results[0, BASELINE], results[0, OURS]),
        _mixed(results[1, BASELINE], results[1, OURS]),
        _many_users(results[2, BASELINE], results[2, OURS]),
    ]


def as_dict(claim: Claim) -> dict[str, object]:
    return asdict(claim) | {"figures": [asdict(each) | {"met": each.met} for each in claim.figures]}


def _run_all(cases: list[tuple[Setup, str, int]], processes: int) -> Iterator[RunResult]:
    if processes <= 1:
        yield from map(_run, cases)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as executor:
        yield from executor.map(_run, cases)


def _run(case: tuple[Setup, str, int]) -> RunResult:
    setup, policy, seed = case
    profile = PROFILES[setup.profile]
    rng = random.Random(f"claims/{seed}")  # noqa: S311  repeatable, no secret
    workload = SessionWorkload(
        setup.kind.sessions(rng), profile, workers=setup.workers, load=setup.load, requests=setup.requests, rng=rng
    )
    dice = random.Random(f"{policy}/{seed}")  # noqa: S311  repeatable, no secret
    return FleetRun(workload, POLICIES[policy](setup.workers, profile, dice), profile, workers=setup.workers).run()


def _long_documents(base: list[RunResult], ours: list[RunResult]) -> Claim:
    return Claim(
        "S0.8",
        "19.4 % → 87.2 % hit tokens at 100k-token contexts, mean TTFT about 6 times shorter",
        "160 documents of 98,000 tokens behind 2,048 of rules, asked by Zipf 0.6, 1,000 questions; 8 × H200, 8B model, "
        "KV in FP8",
        (
            _figure("hit tokens, round robin", "%", (19.4, 19.4), [_hits(one) for one in base]),
            _figure("hit tokens, prefix-aware", "%", (87.2, 87.2), [_hits(one) for one in ours]),
            _figure("mean TTFT, round robin ÷ prefix-aware", "×", (6.0, 6.0), _ratios(base, ours)),
        ),
        "A worker's cache holds 17 of the 160 documents: in turn each meets a tenth of what it needs, by prefix nearly "
        "all of it. What is left are first questions, once a document. The ratio of TTFTs is that of missed tokens, "
        "(100 − 19.4) ÷ (100 − 87.2) = 6.3, as long as neither fleet queues; under load it grows without bound.",
    )


def _mixed(base: list[RunResult], ours: list[RunResult]) -> Claim:
    return Claim(
        "S4.7",
        "fleet hit rate 35 % → 70 %",
        "125 documents of 14,336 tokens behind 1,024 of rules, asked by Zipf 0.85 with 4,400 tokens of one's own, "
        "1,500 requests; 8 × H100, 8B",
        (
            _figure("hit tokens, round robin", "%", (35.0, 35.0), [_hits(one) for one in base]),
            _figure("hit tokens, prefix-aware", "%", (70.0, 70.0), [_hits(one) for one in ours]),
        ),
        "The own fifth of each prompt bounds every rule at 78 %. How far round robin falls below depends on how many "
        "documents one worker can hold beside the others' traffic, here 28 of 125.",
    )


def _many_users(base: list[RunResult], ours: list[RunResult]) -> Claim:
    cold_ms, hit_ms = _alone_ms()
    return Claim(
        "S2.6",
        "4,096-token prefill of 350–500 ms cold, about 12 ms on a full hit; 1,000 users × 5 turns",
        "one idle H100 with a 32B model in FP8, a prompt of 4,096 tokens twice; then 1,000 users × 5 turns on 8 such",
        (
            Figure("TTFT cold, one worker", "ms", (350.0, 500.0), cold_ms, cold_ms, cold_ms),
            Figure("TTFT on a full hit, one worker", "ms", (12.0, 12.0), hit_ms, hit_ms, hit_ms),
            _figure("hit tokens, 1,000 users, round robin", "%", None, [_hits(one) for one in base]),
            _figure("hit tokens, 1,000 users, prefix-aware", "%", None, [_hits(one) for one in ours]),
            _figure("mean TTFT, round robin ÷ prefix-aware", "×", None, _ratios(base, ours)),
        ),
        "A full hit still computes the last block, because the last token's logits are needed, and one step reads all "
        "weights: 12.5 ms of 32 GB at 2.5 TB/s. With vLLM's blocks of 16 tokens that is all; the simulation's blocks "
        "are of 512, and its figure is of a prompt that ends one token behind a block. "
        "For the users the article has no figures of hits.",
    )


def _alone_ms() -> tuple[float, float]:
    """TTFT of 4,097 tokens on an idle worker, first never seen, then all but its last token cached."""
    engine, now, found = FleetEngine(H100_32B), 0.0, []
    prompt = Prompt((Segment("text", 4_097),), 1, 0, "answer")
    for number in (1, 2):
        request = Request(number, now, prompt.tokens, 1, prompt.chain(), prompt.text_hashes(), 0)
        sequence = engine.add(request, now)
        while sequence.first_token_s is None:
            now = engine.due_s
            engine.finish_step(now)
        found.append((sequence.first_token_s - request.arrival_s) * 1_000)
    return found[0], found[1]


def _hits(result: RunResult) -> float:
    assert result.hit_token_share is not None, "every set-up has admitted requests"
    return result.hit_token_share * 100


def _ratios(base: list[RunResult], ours: list[RunResult]) -> list[float]:
    """Of mean TTFTs, seed by seed."""
    pairs = zip(base, ours, strict=True)
    return [slow.ttft_mean_s / fast.ttft_mean_s for slow, fast in pairs if slow.ttft_mean_s and fast.ttft_mean_s]


def _figure(name: str, unit: str, article: tuple[float, float] | None, values: list[float]) -> Figure:
    middle = mean(values)
    reach = T_95[len(values)] * stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("inf")
    return Figure(name, unit, article, middle, middle - reach, middle + reach)
