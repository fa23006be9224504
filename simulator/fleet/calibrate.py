"""A profile from what was recorded of a worker: scrapes of its metrics, or a report of the control plane.

What was not measured is taken from a known machine, `like`, and the file says so: attention from its FLOP, and how a
step's time divides between weights, sequences and their KV.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from simulator.fleet.calibrate_metrics import Interval
from simulator.fleet.calibrated_profile import ProfileFile
from simulator.fleet.calibration import fit_prefill
from simulator.fleet.hardware import PROFILES, GpuProfile

QUEUED_SHARE_MAX = 0.1
"""Of the time to a first token: with more queueing prompts shared their steps, and the rate is a lower bound."""
DECODE_FIELDS = ["decode_base_s", "decode_sequence_s", "decode_context_token_s"]


class UnknownError(Exception):
    """What was recorded does not hold a prefill rate; the message says why."""


def from_intervals(
    found: Sequence[Interval], *, name: str, like: GpuProfile | None = None, batch_tokens: int | None = None
) -> ProfileFile:
    """Raises UnknownError without a prefill rate: nothing else makes a machine."""
    notes = list(dict.fromkeys(note for each in found for note in each.notes))
    points = [each.prefill for each in found if each.prefill is not None]
    if not points:
        raise UnknownError("; ".join(notes) or "no prefill was measured")
    rough_tokens_per_s = sum(point.new_tokens for point in points) / sum(point.seconds for point in points)
    like = like or nearest(rough_tokens_per_s)
    profile = replace(like, name=name, max_num_batched_tokens=batch_tokens or like.max_num_batched_tokens)
    profile, measured = _decoding(profile, found)
    fit = fit_prefill(
        points, step_s=_step_of_prefill_s(profile, measured), batch_tokens=profile.max_num_batched_tokens,
        doubling_tokens=profile.attention_doubling_tokens,
    )  # fmt: skip
    if fit is None:
        raise UnknownError("prompts took no longer than a step: send longer ones between the scrapes")
    profile = replace(profile, prefill_tokens_per_s=fit.tokens_per_s)
    measured = ["prefill_tokens_per_s", *measured]
    capacities = [each.kv_capacity_tokens for each in found if each.kv_capacity_tokens is not None]
    if capacities:
        profile, measured = replace(profile, kv_capacity_tokens=min(capacities)), [*measured, "kv_capacity_tokens"]
    if any((each.queued_share or 0.0) > QUEUED_SHARE_MAX for each in found):
        notes.append("requests queued, so prompts shared their steps: the prefill rate is a lower bound")
    overheads = [each.overhead_s for each in found if each.overhead_s is not None]
    overhead_s = statistics.median(overheads) + fit.overhead_s if overheads else None
    return ProfileFile(profile, measured, like.name, "metrics", overhead_s, notes)


def _decoding(profile: GpuProfile, found: Sequence[Interval]) -> tuple[GpuProfile, list[str]]:
    """The known machine's decode terms, all scaled so that the mean step takes what it took."""
    ratios = [
        each.step_s / _step_s(profile, each.batch, each.context_tokens)
        for each in found
        if each.step_s and each.batch is not None and each.context_tokens is not None
    ]
    if not ratios:
        return profile, []
    scale = statistics.median(ratios)
    return replace(profile, **{field: scale * getattr(profile, field) for field in DECODE_FIELDS}), DECODE_FIELDS


def _step_s(profile: GpuProfile, batch: float, context_tokens: float) -> float:
    a_sequence_s = profile.decode_sequence_s + context_tokens * profile.decode_context_token_s
    return profile.decode_base_s + max(1.0, batch) * a_sequence_s


def _step_of_prefill_s(profile: GpuProfile, measured: Sequence[str]) -> float:
    """What each chunk pays beside its tokens; unknown where decoding is, and then in the rate."""
    return profile.decode_base_s if measured else 0.0


def nearest(prefill_tokens_per_s: float) -> GpuProfile:
    """The known machine whose prefill is nearest."""
    return min(PROFILES.values(), key=lambda known: abs(known.prefill_tokens_per_s - prefill_tokens_per_s))


def from_report(figures: Any, *, pool: str, name: str, like: GpuProfile | None = None) -> ProfileFile:
    """Of a report as JSON: what routers have calibrated. Any: foreign JSON. Raises UnknownError."""
    rates = figures.get("prefill_tokens_per_s") if isinstance(figures, dict) else None
    if not isinstance(rates, dict) or not rates:
        raise UnknownError("the report holds no prefill rate of any pool: no hits were measured in its time")
    if not pool and len(rates) > 1:
        raise UnknownError(f"the report holds several pools, name one with --pool: {', '.join(sorted(rates))}")
    pool = pool or next(iter(rates))
    rate = rates.get(pool)
    if not isinstance(rate, int | float) or rate <= 0:
        raise UnknownError(f"the report holds no prefill rate of {pool}, only of {', '.join(sorted(rates))}")
    like = like or nearest(rate)
    profile, measured = replace(like, name=name, prefill_tokens_per_s=float(rate)), ["prefill_tokens_per_s"]
    capacity = _capacity(figures, pool)
    notes = ["decode time is not in a report: unknown"]
    if capacity is None:
        notes.append(f"the report's what-if does not tell the KV capacity of {pool}: unknown")
    else:
        profile, measured = replace(profile, kv_capacity_tokens=capacity), [*measured, "kv_capacity_tokens"]
    return ProfileFile(profile, measured, like.name, "report", None, notes)


def _capacity(figures: Any, pool: str) -> int | None:
    what_if = figures.get("what_if")
    if not isinstance(what_if, dict) or what_if.get("pool") != pool:
        return None
    question = what_if.get("question")
    capacity = question.get("kv_capacity_tokens") if isinstance(question, dict) else None
    return capacity if isinstance(capacity, int) and capacity > 0 else None
