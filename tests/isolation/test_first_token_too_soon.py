"""A first token that comes too soon for what the answer says was computed (S1.6): the core's word, stored and shown."""

from __future__ import annotations

import pytest
from django.utils import timezone

from controlplane.fleet.models import Finding
from controlplane.isolation.models import IsolationViolation
from controlplane.isolation.services import acknowledge_violation, record_violations
from router.contract.telemetry import Shipment, Violation
from router.core.model import Outcome
from tests.core.scene import Scene, prompt

TOKENS = 8000


def serve(scene: Scene, seed: int, *, ttft_s: float, cached: int | None = 0, tokens: int = TOKENS, ok: bool = True):
    """One stream of a prompt of its own, alone on its worker."""
    reservation = scene.start_on(0, prompt(seed, 4 * tokens))
    scene.now += ttft_s
    scene.table.first_byte(reservation, now=scene.now)
    outcome = Outcome(ok, prompt_tokens=tokens, completion_tokens=1, cached_tokens=cached)
    assessed = scene.table.release(reservation, outcome, now=scene.now)
    scene.now += 1.0
    return assessed


@pytest.fixture
def learnt() -> Scene:
    """Misses of 8,000 tokens take 0.8 s here, and the router has seen ten of them."""
    scene = Scene()
    for seed in range(10):
        assert serve(scene, seed, ttft_s=0.8).expected_ttft_ms == 0
    return scene


def test_a_hit_that_is_called_a_miss_is_told(learnt: Scene) -> None:
    told = serve(learnt, 50, ttft_s=0.05)
    assert 600 < told.expected_ttft_ms < 1200 and len(told.evidence) == 32


@pytest.mark.parametrize(
    ("what", "fields"),
    [
        ("a hit that is owned up to", {"ttft_s": 0.05, "cached": TOKENS - 16}),
        ("a worker at its best", {"ttft_s": 0.2}),
        ("an answer that does not tell", {"ttft_s": 0.05, "cached": None}),
        ("a short prompt", {"ttft_s": 0.005, "tokens": 1000}),
        ("a failed one", {"ttft_s": 0.05, "ok": False}),
    ],
)
def test_it_is_quiet_for(learnt: Scene, what: str, fields: dict[str, object]) -> None:
    assert serve(learnt, 50, **fields).expected_ttft_ms == 0, what


def test_nothing_is_told_before_the_rate_is_learnt() -> None:
    assert serve(Scene(), 1, ttft_s=0.05).expected_ttft_ms == 0


def test_it_is_stored_as_a_warning_of_its_own_kind_and_closes_when_acknowledged(db) -> None:
    told = Violation(
        at=timezone.now().timestamp(), request_id="r1", tenant="a", namespace="a/n", pool="p", worker="p/w1", model="m",
        prompt_tokens=8000, cached_tokens=0, bound_tokens=0, kind="ttft", ttft_ms=50.0, expected_ms=800.0,
    )  # fmt: skip
    record_violations([Shipment("r", "b", 0, 0.0, violations=[told])])
    row = IsolationViolation.objects.get()
    assert (row.kind, row.severity, row.ttft_ms, row.expected_ms) == ("ttft", "warning", 50.0, 800.0)
    finding = Finding.objects.get(kind="ttft_too_soon")
    assert (finding.subject, finding.severity) == ("a/n", "warning")
    acknowledge_violation(row.pk, actor="user:alice", acknowledgement="a worker that hides its hits")
    finding.refresh_from_db()
    assert finding.resolved_at is not None
