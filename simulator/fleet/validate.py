"""The modelled fleet against workers that answer: the same requests to both, placed alike.

Conversations over a common head go to the workers' `/v1/completions` as token ids, turn by turn, some of them in pairs
at once on one worker. Between them prompts of several lengths that nobody knows are sent to an idle worker: from
those, measured in the same minutes under the same load, a profile is fitted (`calibration.py`). Then a modelled fleet
with that profile and the workers' own block size and capacity is asked everything again, calibration included, since
it fills caches too; each group begins when the one before has ended. Compared are the conversations' turns only.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from simulator.fleet.calibration import PrefillFit, PrefillPoint, fit_prefill
from simulator.fleet.engine import FleetEngine
from simulator.fleet.engine import Sequence as Simulated
from simulator.fleet.hardware import H200_8B, GpuProfile
from simulator.fleet.names import BlockName
from simulator.fleet.workload import Request
from simulator.hashing import BlockDigest, event_hash, extend_chain

HEAD_TOKENS = 600
"""That all conversations share."""
TURN_TOKENS_MIN, TURN_TOKENS_MAX = 200, 900
ANSWER_TOKENS = 8
PAIR_EVERY = 4
"""Every so many groups of turns are two conversations' at once."""
CALIBRATE_EVERY = 2
"""Groups of turns between two calibrating prompts, which are long and push much out of a small cache."""
MOVED_EVERY = 5
"""Every so many turns go to another worker than the conversation's own, which has less of it in its cache."""
CALIBRATION_SHARES = (0.04, 0.25, 0.08, 0.5, 0.12, 0.9)
"""Of the longest prompt a worker takes: as short as turns are, and as long as shows what attention costs."""
CONTEXT_SHARE = 0.8
"""Of a calibration prompt that is asked again with a longer tail, so that context is seen apart from length."""


@dataclass(slots=True)
class Asked:
    """One request: `fresh` tokens behind everything its conversation said before."""

    worker: int
    conversation: int
    fresh: tuple[int, ...]
    calibrates: bool = False
    prompt: tuple[int, ...] = ()
    answer: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Served:
    hit_tokens: int
    ttft_s: float
    step_s: float | None = None
    """Between the tokens of its answer, in the mean; None for a single token."""


Group = list[Asked]
"""Sent at once; the next begins when all have ended."""


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    block_tokens: int
    kv_blocks: int
    """That requests can have."""
    prompt_tokens_max: int
    batch_tokens: int


@dataclass(frozen=True, slots=True)
class Comparison:
    requests: int
    equal_hits: int
    hit_tokens: int
    ttft_ratio_median: float
    """Of simulated ÷ real, turn by turn; each turn's times are medians over the rounds."""
    ttft_ratio_mean: float
    """Sum of the simulated times ÷ sum of the real ones."""
    ttft_ratio_low: float
    ttft_ratio_high: float
    """Nine tenths of the turns lie between."""
    fit: PrefillFit
    step_s: float


@dataclass(frozen=True, slots=True)
class Shape:
    """What is asked of the workers: of the same shape, the same lengths in the same order on the same workers."""

    workers: int
    conversations: int = 8
    turns: int = 5
    rounds: int = 3
    seed: int = 1


def plan(shape: Shape, facts: WorkerFacts, *, text: random.Random) -> list[Group]:
    """Rounds of equal shape and different text: each request is measured `rounds` times, some time apart."""
    groups: list[Group] = []
    for _ in range(shape.rounds):
        begun = sum(len(group) for group in groups)
        groups += _round(shape, facts, text, first_conversation=begun)
    return groups


def _round(shape: Shape, facts: WorkerFacts, text: random.Random, *, first_conversation: int) -> list[Group]:
    """Turns of all conversations in a shuffled order, calibrating prompts among them."""
    dice = random.Random(f"validate/{shape.seed}")  # noqa: S311  repeatable, no secret
    room = facts.prompt_tokens_max - HEAD_TOKENS - shape.turns * ANSWER_TOKENS
    longest = min(TURN_TOKENS_MAX, room // shape.turns)
    head = _tokens(text, HEAD_TOKENS)
    todo = [conversation for conversation in range(shape.conversations) for _ in range(shape.turns)]
    dice.shuffle(todo)
    calibrating = _calibrating(shape, facts, text, first_conversation + shape.conversations)
    groups: list[Group] = []
    begun: set[int] = set()
    number = 0
    while todo:
        pair = number % PAIR_EVERY == 0 and len(todo) > 1 and todo[-1] != todo[-2]
        moved = not pair and dice.randrange(MOVED_EVERY) == 0
        group: Group = []
        for conversation in [todo.pop() for _ in range(1 + pair)]:
            fresh = _tokens(text, dice.randrange(TURN_TOKENS_MIN, longest))
            worker = number // PAIR_EVERY if pair else conversation + moved
            whole = fresh if conversation in begun else head + fresh
            group.append(Asked(worker % shape.workers, first_conversation + conversation, whole))
            begun.add(conversation)
        groups.append(group)
        if number % CALIBRATE_EVERY == 0:
            groups.append(next(calibrating))
        number += 1
    return groups


def _calibrating(shape: Shape, facts: WorkerFacts, text: random.Random, first_conversation: int) -> Iterator[Group]:
    """For each length a prompt that nobody knows, then the same with a longer tail, on one worker after the other."""
    for number, share in enumerate(itertools.cycle(CALIBRATION_SHARES)):
        length = int(share * facts.prompt_tokens_max)
        first = int(CONTEXT_SHARE * length)
        for fresh in (_tokens(text, first), _tokens(text, length - first - ANSWER_TOKENS)):
            yield [Asked(number % shape.workers, first_conversation + number, fresh, calibrates=True)]


def _tokens(dice: random.Random, count: int) -> tuple[int, ...]:
    return tuple(dice.randrange(100, 4_000) for _ in range(count))


def calibrated(
    groups: Sequence[Group], served: Sequence[Sequence[Served]], facts: WorkerFacts
) -> tuple[GpuProfile, PrefillFit]:
    """A profile of what the calibrating requests took. Raises ValueError where they tell nothing."""
    alone = [
        (asked, was)
        for group, answers in zip(groups, served, strict=True)
        for asked, was in zip(group, answers, strict=True)
        if asked.calibrates
    ]
    steps = [was.step_s for _, was in alone if was.step_s is not None]
    if not steps:
        raise ValueError("no calibrating request had an answer of two tokens")
    step_s = statistics.median(steps)
    points = [PrefillPoint(len(asked.prompt) - was.hit_tokens, was.hit_tokens, was.ttft_s) for asked, was in alone]
    fit = fit_prefill(points, step_s=step_s, batch_tokens=facts.batch_tokens)
    if fit is None:
        raise ValueError("the calibrating requests show no cost of a prompt token")
    return _profile(fit, step_s, facts), fit


def _profile(fit: PrefillFit, step_s: float, facts: WorkerFacts) -> GpuProfile:
    """A step costs the same however many sequences decode: what a few of them show on a small model."""
    return replace(
        H200_8B,
        name="measured",
        prefill_tokens_per_s=fit.tokens_per_s,
        attention_doubling_tokens=fit.attention_doubling_tokens,
        decode_base_s=step_s,
        decode_sequence_s=0.0,
        decode_context_token_s=1e-12,
        kv_capacity_tokens=facts.kv_blocks * facts.block_tokens,
        max_num_batched_tokens=facts.batch_tokens,
    )


def simulated(
    groups: Sequence[Group], profile: GpuProfile, facts: WorkerFacts, *, workers: int, overhead_s: float
) -> list[list[Served]]:
    """What the modelled workers do with the same groups, each begun when the one before has ended."""
    engines = [FleetEngine(profile, block_tokens=facts.block_tokens) for _ in range(workers)]
    now = 0.0
    found = []
    for number, group in enumerate(groups):
        sequences = [engines[asked.worker].add(_request(asked, number, facts), now) for asked in group]
        began = now
        while True:
            engine = min(engines, key=lambda each: each.due_s)
            if engine.due_s == float("inf"):
                break
            now = engine.due_s
            engine.finish_step(now)
        found.append([_served(sequence, began, overhead_s) for sequence in sequences])
    return found


def _served(sequence: Simulated, began_s: float, overhead_s: float) -> Served:
    assert sequence.first_token_s is not None and sequence.cached_tokens is not None
    return Served(sequence.cached_tokens, sequence.first_token_s - began_s + overhead_s)


def _request(asked: Asked, number: int, facts: WorkerFacts) -> Request:
    digests: list[BlockDigest] = []
    extend_chain(digests, [*asked.prompt, *asked.answer], block_size_tokens=facts.block_tokens, salt=None)
    return Request(
        id=number,
        arrival_s=0.0,
        prompt_tokens=len(asked.prompt),
        output_tokens=len(asked.answer),
        chain=[BlockName(event_hash(digest)) for digest in digests],
        text_hashes=[],
        affinity=asked.conversation,
    )


def compared(groups: Sequence[Group], real: Sequence[Sequence[Served]], facts: WorkerFacts, shape: Shape) -> Comparison:
    """Of the turns of conversations, each by its median over the rounds. Raises ValueError as `calibrated`."""
    profile, fit = calibrated(groups, real, facts)
    modelled = simulated(groups, profile, facts, workers=shape.workers, overhead_s=fit.overhead_s)
    a_round = len(groups) // shape.rounds
    turns: dict[tuple[int, int], list[tuple[Served, Served]]] = {}
    for number, (group, answers, models) in enumerate(zip(groups, real, modelled, strict=True)):
        for member, (asked, was, would) in enumerate(zip(group, answers, models, strict=True)):
            if not asked.calibrates:
                turns.setdefault((number % a_round, member), []).append((was, would))
    real_s = [statistics.median(was.ttft_s for was, _ in turn) for turn in turns.values()]
    model_s = [statistics.median(would.ttft_s for _, would in turn) for turn in turns.values()]
    ratios = sorted(model / was for model, was in zip(model_s, real_s, strict=True))
    pairs = [pair for turn in turns.values() for pair in turn]
    return Comparison(
        requests=len(pairs),
        equal_hits=sum(was.hit_tokens == would.hit_tokens for was, would in pairs),
        hit_tokens=sum(was.hit_tokens for was, _ in pairs),
        ttft_ratio_median=statistics.median(ratios),
        ttft_ratio_mean=sum(model_s) / sum(real_s),
        ttft_ratio_low=ratios[len(ratios) // 20],
        ttft_ratio_high=ratios[-1 - len(ratios) // 20],
        fit=fit,
        step_s=profile.decode_base_s,
    )
