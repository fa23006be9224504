"""One explained request: where its time went, what its candidates were worth, and what other choices would have cost.

Pure: of a recorded `DecisionSample`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.telemetry.decisions import without_others_load
from router.contract.telemetry import Candidate, DecisionSample

WIDTH = 100.0
"""Of the waterfall, in the drawing's own units."""
MARK_MIN = 0.4
"""Width of what is too short to be seen."""
OFF_TOKENS = 64
OFF_SHARE = 0.1
"""A prediction is off when it misses by more than both: blocks are cut, and text is not tokens."""


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    note: str
    ms: float | None
    """None = a moment, not a span."""
    x: str
    width: str
    """Of its bar, in the drawing's units."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """What another choice would have cost, by the terms that the router had."""

    name: str
    worker: str
    """"" = no single one."""
    recomputed_tokens: float
    slower_ms: float
    """Against the choice; negative = sooner."""


@dataclass(frozen=True, slots=True)
class Card:
    sentence: str
    phases: list[Phase]
    candidates: list[Candidate]
    moved: bool
    """Whether any candidate has a term for transfer, priority or a further home."""
    alternatives: list[Alternative]
    off_tokens: int | None
    """Delivered − predicted hit tokens; None = the worker did not say."""
    verdict: str


def card_of(sample: DecisionSample, *, others_load: bool) -> Card:
    """`others_load` False: without what tells how busy workers are with other tenants' requests."""
    candidates = sorted(sample.candidates, key=lambda each: (bool(each.excluded), -each.net_ms))
    off = None if sample.cached_tokens is None else sample.cached_tokens - sample.predicted_hit_tokens
    return Card(
        sentence=sample.sentence if others_load else without_others_load(sample.sentence),
        phases=phases_of(sample),
        candidates=candidates,
        moved=any(each.transfer_ms or each.priority_ms or each.replica_ms for each in candidates),
        alternatives=alternatives_of(sample),
        off_tokens=off,
        verdict=_verdict(sample, off),
    )


def phases_of(sample: DecisionSample) -> list[Phase]:
    """In their order; what was not timed is part of the phase that follows."""
    spans = [(name, note, ms) for name, note, ms in _before_the_worker(sample) if ms > 0]
    before_ms = sum(ms for _, _, ms in spans)
    spans += _at_the_worker(sample, before_ms)
    total_ms = sum(ms for _, _, ms in spans)
    phases, at_ms = [], 0.0
    for name, note, ms in spans:
        phases.append(_phase(name, note, ms, at_ms, total_ms))
        at_ms += ms
        if name == "prefill":
            phases.append(_moment("first byte", at_ms, total_ms))
    return phases


def _before_the_worker(sample: DecisionSample) -> list[tuple[str, str, float]]:
    fingerprint_us = sample.fingerprint_us or 0.0
    choice_us = max(sample.decision_us - sample.reading_us - fingerprint_us, 0.0)
    earlier_ms = max(sample.retried_after_ms - ((sample.auth_us or 0.0) + sample.reading_us) / 1000, 0.0)
    return [
        ("auth", "key and model to what they may use", (sample.auth_us or 0.0) / 1000),
        ("reading", "prompt to tokens, as the workers hash it", sample.reading_us / 1000),
        ("earlier attempt", "another worker was asked before", earlier_ms if sample.retries else 0.0),
        ("fingerprint", "prompt to blocks", fingerprint_us / 1000),
        (
            "match and choice" if sample.fingerprint_us is not None else "decision",
            f"{len(sample.candidates)} candidates" if sample.candidates else "fingerprint, match and choice",
            choice_us / 1000,
        ),
        ("pull", _pull_note(sample), sample.pull_ms),
        ("connect", "no open connection to the worker was idle", sample.connect_ms),
    ]


def _at_the_worker(sample: DecisionSample, before_ms: float) -> list[tuple[str, str, float]]:
    if sample.ttft_ms is None:
        rest_ms = max((sample.duration_ms or 0.0) - before_ms, 0.0)
        return [("worker", "queue, prefill and decode: no stream, so they are not told apart", rest_ms)] * (rest_ms > 0)
    waited_ms = max(sample.ttft_ms - before_ms, 0.0)
    queue_ms = min(sample.queue_ms or 0.0, waited_ms)
    spans = [("queue", "until the worker was free for it, by the router's ledger", queue_ms)] if queue_ms else []
    spans.append(("prefill", _prefill_note(sample), waited_ms - queue_ms))
    decode_ms = (sample.duration_ms or 0.0) - sample.ttft_ms
    if decode_ms > 0:
        tokens = sample.output_tokens
        note = f"{tokens:,} tokens, {decode_ms / tokens:.3g} ms each" if tokens else "to the last byte"
        spans.append(("decode", note, decode_ms))
    return spans


def _pull_note(sample: DecisionSample) -> str:
    source = sample.pulled_from.rpartition("/")[2]
    if sample.pull == "fell_back":
        return f"{source} was to hand over the prompt's KV; it was computed after all"
    return f"{source} offered the prompt's KV"


def _prefill_note(sample: DecisionSample) -> str:
    if sample.prompt_tokens is None or sample.cached_tokens is None:
        return "uncached tokens unknown"
    return f"{max(sample.prompt_tokens - sample.cached_tokens, 0):,} uncached tokens"


def _phase(name: str, note: str, ms: float, at_ms: float, total_ms: float) -> Phase:
    x, width = at_ms / total_ms * WIDTH, max(ms / total_ms * WIDTH, MARK_MIN)
    return Phase(name, note, ms, f"{min(x, WIDTH - width):.2f}", f"{width:.2f}")


def _moment(name: str, at_ms: float, total_ms: float) -> Phase:
    x = min(at_ms / total_ms * WIDTH, WIDTH - MARK_MIN)
    return Phase(name, f"TTFT, {at_ms:,.0f} ms after the request", None, f"{x:.2f}", f"{MARK_MIN:.2f}")


def alternatives_of(sample: DecisionSample) -> list[Alternative]:
    """Of the candidates that could have been chosen; none where there was no choice."""
    eligible = [each for each in sample.candidates if not each.excluded]
    chosen = next((each for each in eligible if each.worker == sample.worker), None)
    others = [each for each in eligible if each is not chosen]
    if chosen is None or not others:
        return []
    prompt = sample.predicted_prompt_tokens or sample.prompt_tokens or 0
    idlest = min(others, key=lambda each: (each.outstanding, -each.net_ms))
    holder = max(eligible, key=lambda each: (each.matched_tokens, each.net_ms))
    found = [_alternative("least loaded", idlest, chosen, prompt)]
    if holder is not chosen and holder is not idlest:
        found.append(_alternative("longest match", holder, chosen, prompt))
    mean_net_ms = _mean([each.net_ms for each in eligible])
    recomputed = _mean([max(prompt - each.matched_tokens, 0) for each in eligible])
    found.append(Alternative(f"round robin over {len(eligible)}", "", recomputed, chosen.net_ms - mean_net_ms))
    if chosen.matched_tokens:
        found.append(Alternative("no cache at all", "", prompt, chosen.saved_ms - chosen.transfer_ms))
    return found


def _alternative(name: str, other: Candidate, chosen: Candidate, prompt_tokens: int) -> Alternative:
    recomputed = max(prompt_tokens - other.matched_tokens, 0)
    return Alternative(name, other.worker, recomputed, chosen.net_ms - other.net_ms)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _verdict(sample: DecisionSample, off: int | None) -> str:
    if off is None:
        return "The worker did not say how much was cached."
    if abs(off) <= max(OFF_TOKENS, OFF_SHARE * sample.predicted_hit_tokens):
        return "Delivered as predicted."
    if off < 0:
        return f"{-off:,} tokens fewer than predicted: evicted since, or the index was stale."
    return f"{off:,} tokens more than predicted: the worker held more than the router knew."
