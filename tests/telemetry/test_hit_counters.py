"""A worker's hit counters are held against its own answers (C45, C47)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.fleet.models import Finding
from controlplane.telemetry.hit_check import HitCounts, check_hit_counters, doubts
from controlplane.telemetry.models import RequestRollup, Width, WorkerRollup


@pytest.mark.parametrize(
    ("counts", "kinds"),
    [
        (HitCounts(60_000, looked_up=100_000, counted_hits=58_000, prompts=100_000), []),
        (HitCounts(60_000, looked_up=100_000, counted_hits=0, prompts=100_000), ["hit_counter_stuck"]),
        (HitCounts(0, looked_up=100_000, counted_hits=0, prompts=100_000), []),
        (HitCounts(900, looked_up=1_000, counted_hits=0, prompts=1_000), []),
        (HitCounts(20_000, 180_000, counted_hits=100_000, prompts=100_000, preemptions=40), ["hits_counted_again"]),
        (HitCounts(20_000, 105_000, counted_hits=20_000, prompts=100_000, preemptions=40), []),
        # Without preemptions prompts that are still under way make the difference.
        (HitCounts(20_000, 180_000, counted_hits=20_000, prompts=100_000), []),
    ],
)
def test_it_doubts_counters_that_answers_contradict_c45_c47(counts: HitCounts, kinds: list[str]) -> None:
    assert [each.kind for each in doubts("p/w1", counts)] == kinds


@pytest.mark.django_db
def test_a_stuck_counter_is_a_finding_until_it_moves_c47() -> None:
    now = timezone.now()
    start = now - timedelta(minutes=2)
    RequestRollup.objects.create(width_s=Width.MINUTE, start=start, worker="p/w1", hit_tokens=50_000)
    rollup = WorkerRollup.objects.create(
        width_s=Width.MINUTE, start=start, worker="p/w1", prefix_query_tokens=90_000, prompt_tokens=90_000
    )
    assert check_hit_counters(now=now) == 1
    assert Finding.objects.get(resolved_at=None).kind == "hit_counter_stuck"
    WorkerRollup.objects.filter(pk=rollup.pk).update(prefix_hit_tokens=49_000)
    assert check_hit_counters(now=now) == 0
    assert not Finding.objects.filter(resolved_at=None).exists()
