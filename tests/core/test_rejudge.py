"""A recorded decision judged again: the same policy chooses the same, another one what it would have chosen."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest

from router.contract.snapshot import PoolPolicy, Watermark
from router.contract.telemetry import Candidate, DecisionSample
from router.core.model import Decision, Reservation
from router.core.rejudge import Judged, Rejudge, Unjudgeable
from tests.core.scene import MODEL, POOL, Scene, namespace_id, prompt, snapshot, worker_id


def _sample(decision: Decision, *, at: float, number: int) -> DecisionSample:
    return DecisionSample(
        at=at, request_id=f"r{number}", tenant="alice", namespace=namespace_id("alice"), pool=POOL, model=MODEL,
        policy_version=1, worker=decision.worker, reason=decision.reason, sentence="", candidates=decision.candidates,
        predicted_hit_tokens=decision.predicted_hit_tokens, preferred=decision.preferred or "", spill=decision.spill,
        predicted_prompt_tokens=decision.predicted_prompt_tokens,
    )  # fmt: skip


def _traffic(
    scene: Scene, requests: int, *, use: Callable[[int], dict[int, float]] | None = None
) -> list[DecisionSample]:
    """Sessions that grow, others that come once, several under way at a time."""
    rng = random.Random(3)
    texts = [prompt(seed, 6_000) for seed in range(12)]
    under_way: list[Reservation] = []
    samples = []
    for number in range(requests):
        scene.now += rng.expovariate(6.0)
        if use is not None:
            scene.live(use(number))
        turn = rng.randrange(len(texts))
        if rng.random() < 0.7:
            texts[turn] += prompt(number + 1000, rng.randrange(500, 3000))
            text, session = texts[turn], f"s{turn}" if turn % 3 == 0 else None
        else:
            text, session = prompt(number + 5000, rng.randrange(200, 20_000)), None
        decision = scene.choose(text, session=session)
        samples.append(_sample(decision, at=scene.now, number=number))
        under_way.append(scene.table.reserve(decision, now=scene.now))
        while len(under_way) > 8 or (under_way and rng.random() < 0.5):
            scene.finish(under_way.pop(rng.randrange(len(under_way))), ttft_s=0.01)
    return samples


def _again(
    rejudge: Rejudge, base: Rejudge, samples: list[DecisionSample]
) -> list[tuple[DecisionSample, Judged | None]]:
    found = []
    for sample in samples:
        try:
            found.append((sample, rejudge.judge(base.scene(sample))))
        except Unjudgeable:
            continue
    return found


def test_the_policy_that_decided_decides_the_same_again() -> None:
    scene = Scene()
    base = Rejudge(scene.policy, POOL, alone=True)
    again = _again(base, base, _traffic(scene, 400))
    assert len(again) >= 300
    same = sum(judged is not None and judged.worker == sample.worker for sample, judged in again)
    assert same / len(again) >= 0.97
    spills = sum(bool(sample.spill) == bool(judged and judged.spill) for sample, judged in again)
    assert spills / len(again) >= 0.93


def test_hits_and_ttft_are_those_that_were_predicted() -> None:
    scene = Scene()
    base = Rejudge(scene.policy, POOL, alone=True)
    for sample, judged in _again(base, base, _traffic(scene, 200)):
        if judged is None or judged.worker != sample.worker:
            continue
        chosen = next(seen for seen in sample.candidates if seen.worker == sample.worker)
        assert judged.hit_tokens == pytest.approx(chosen.matched_tokens, abs=130)
        assert judged.ttft_ms >= chosen.queue_ms - 1


@pytest.mark.parametrize("routing", ["round_robin", "least_outstanding", "ring", "tidemark"])
def test_it_runs_every_rule(routing: str) -> None:
    scene = Scene()
    samples = _traffic(scene, 150)
    other = Rejudge(snapshot(pool=PoolPolicy(models=(MODEL,), routing=routing)), POOL, alone=True)  # type: ignore[arg-type]
    again = _again(other, Rejudge(scene.policy, POOL, alone=True), samples)
    assert len(again) > 100 and all(judged is not None for _, judged in again)
    hits = sum(judged.hit_tokens for _, judged in again if judged)
    if routing == "round_robin":
        counts = [sum(judged.worker == worker_id(number) for _, judged in again if judged) for number in range(4)]
        assert max(counts) - min(counts) < 0.4 * len(again) / 4
        assert hits < 0.75 * sum(sample.predicted_hit_tokens for sample, _ in again)


def test_a_lower_watermark_turns_prefixes_away_from_the_full_worker() -> None:
    scene = Scene()
    samples = _traffic(scene, 900, use=lambda _: {0: 0.7, 1: 0.2, 2: 0.2, 3: 0.2})
    base = Rejudge(scene.policy, POOL, alone=True)
    lower = Rejudge(snapshot(pool=PoolPolicy(models=(MODEL,), watermark=Watermark(0.4, 0.6))), POOL, alone=True)

    def fresh_on_full(rejudge: Rejudge) -> int:
        again = _again(rejudge, base, samples)
        return sum(
            judged is not None and judged.worker == worker_id(0) and not judged.hit_tokens for _, judged in again
        )

    assert fresh_on_full(base) > 5
    assert fresh_on_full(lower) == 0


def test_its_hysteresis_runs_over_the_records() -> None:
    mark = Watermark(low=0.3, high=0.6)
    rejudge = Rejudge(snapshot(pool=PoolPolicy(models=(MODEL,), watermark=mark)), POOL, alone=True)

    def on_first(number: int, use: float) -> str:
        candidates = [
            Candidate(worker_id(n), prefill_tokens_per_s=1e4, kv_use=use if n == 0 else 0.1) for n in range(4)
        ]
        candidates[0].matched_tokens = 200
        sample = DecisionSample(
            at=float(number), request_id=f"h{number}", tenant="alice", namespace=namespace_id("alice"), pool=POOL,
            model=MODEL, policy_version=1, worker=worker_id(0), reason="prefix", sentence="", candidates=candidates,
            preferred=worker_id(0), predicted_prompt_tokens=1000,
        )  # fmt: skip
        judged = rejudge.judge(rejudge.scene(sample))
        assert judged is not None
        return judged.worker

    chosen = [on_first(number, use) == worker_id(0) for number, use in enumerate((0.5, 0.7, 0.5, 0.2, 0.5))]
    assert chosen == [True, False, False, True, True]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"candidates": []}, "no_candidates"),
        ({"reason": "retry"}, "retry"),
        ({"worker": "llama/gone"}, "gone"),
        ({"namespace": "gone/main"}, "gone"),
        ({"candidates": [Candidate(worker_id(0))]}, "older_record"),
        ({"candidates": [Candidate(worker_id(0), prefill_tokens_per_s=1.0, replica_ms=2.0)]}, "hot_prefix"),
        ({"candidates": [Candidate(worker_id(0), prefill_tokens_per_s=1.0, pulled_tokens=600)]}, "pull"),
    ],
)
def test_what_cannot_be_set_up_again_is_named(change: dict[str, object], why: str) -> None:
    scene = Scene()
    (sample,) = _traffic(scene, 1)
    with pytest.raises(Unjudgeable, match=why):
        Rejudge(scene.policy, POOL, alone=True).scene(msgspec.structs.replace(sample, **change))
