"""Whether a worker's hit counters can be believed: each against what its own answers delivered.

Shown hits are always those of the answers (`cached_tokens`); the page's counters only explain them. So a wrong counter
misleads nobody here, but it does mislead whoever scrapes the worker, and tells of a worker that is not what it seems.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Sum

from controlplane.fleet.findings import Observation, observe, resolve
from controlplane.telemetry.models import RequestRollup, Width, WorkerRollup

WINDOW = timedelta(minutes=10)
"""Polls and answers of one request may be a minute apart; over ten the counts must agree."""
TOKENS_MIN = 10_000
"""Of smaller counts nothing is concluded."""
COUNTED_AGAIN_SHARE = 1.2
"""Looked-up tokens above this multiple of the prompts' tokens were looked up more than once."""
KINDS = ("hit_counter_stuck", "hits_counted_again")


@dataclass(frozen=True, slots=True)
class HitCounts:
    """Of one worker in one window. Tokens."""

    answered_hits: int = 0
    """Cached tokens by the answers' usage."""
    looked_up: int = 0
    counted_hits: int = 0
    """By the page's counters, like the following."""
    prompts: int = 0
    preemptions: int = 0


def doubts(worker: str, counts: HitCounts) -> list[Observation]:
    """What is wrong with the counters. Pure."""
    found = []
    if counts.counted_hits == 0 and counts.looked_up >= TOKENS_MIN and counts.answered_hits >= TOKENS_MIN:
        message = (
            f"The hit counter stands still while answers delivered {counts.answered_hits:,} cached tokens: "
            "its /metrics cannot be used for hit rates."
        )
        found.append(Observation("hit_counter_stuck", worker, message))
    again = counts.looked_up > COUNTED_AGAIN_SHARE * counts.prompts
    if counts.preemptions and again and counts.prompts >= TOKENS_MIN:
        message = (
            f"{counts.looked_up:,} tokens were looked up for {counts.prompts:,} prompt tokens: {counts.preemptions} "
            "preempted requests are counted again, and their own blocks as hits."
        )
        found.append(Observation("hits_counted_again", worker, message))
    return found


def check_hit_counters(*, now: datetime) -> int:
    """Compare all workers' counters over the last window; how many doubts hold. Three queries and the findings'."""
    counts = _counts(now - WINDOW)
    found = [item for worker, each in counts.items() for item in doubts(worker, each)]
    observe(found, at=now)
    for kind in KINDS:
        doubted = {item.subject for item in found if item.kind == kind}
        resolve(counts.keys() - doubted, [kind], at=now)
    return len(found)


def _counts(since: datetime) -> Mapping[str, HitCounts]:
    answered = dict(
        RequestRollup.objects.filter(width_s=Width.MINUTE, start__gte=since)
        .exclude(worker="")
        .values_list("worker")
        .annotate(Sum("hit_tokens"))
        .order_by()
    )
    rows = (
        WorkerRollup.objects.filter(width_s=Width.MINUTE, start__gte=since)
        .values_list("worker")
        .annotate(Sum("prefix_query_tokens"), Sum("prefix_hit_tokens"), Sum("prompt_tokens"), Sum("preemptions"))
        .order_by()
    )
    return {
        worker: HitCounts(answered.get(worker, 0), looked_up, hits, prompts, preemptions)
        for worker, looked_up, hits, prompts, preemptions in rows
    }
