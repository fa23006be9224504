"""Dry runs: recorded decisions judged again under a proposed policy, with the sample's size and "too few" said."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from django.utils import timezone

from controlplane.audit.models import AuditEntry
from controlplane.errors import Invalid, NotFound
from controlplane.fleet.models import PoolModel, Worker, WorkerPool
from controlplane.namespaces.services import create_namespace
from controlplane.policies.models import PolicyRevision
from controlplane.policies.services import set_watermark
from controlplane.rollouts.dry_run import dry_run
from controlplane.telemetry.models import DecisionRecord
from controlplane.tenants.services import create_tenant
from tests.control.conftest import ACTOR
from tests.core.scene import MODEL, Scene
from tests.core.test_rejudge import _traffic

SCOPE = "pool:llama"


@pytest.fixture
def fleet(db) -> None:
    """The scene's pool of four workers and its tenant."""
    pool = WorkerPool.objects.create(slug="llama")
    PoolModel.objects.create(pool=pool, name=MODEL)
    for number in range(4):
        Worker.objects.create(pool=pool, slug=f"w{number}", url=f"http://10.0.0.{number + 1}:8000")
    create_tenant(actor=ACTOR, slug="alice", name="Alice")
    create_namespace(actor=ACTOR, tenant="alice", slug="main")


def _record(requests: int, **traffic: object) -> datetime:
    """Stores the decisions of a scene's traffic so that the last was just made; returns that time."""
    now = timezone.now()
    samples = _traffic(Scene(), requests, **traffic)
    shift = now.timestamp() - samples[-1].at - 1
    for sample in samples:
        sample = msgspec.structs.replace(sample, at=sample.at + shift)
        DecisionRecord.objects.create(
            request_id=sample.request_id, at=datetime.fromtimestamp(sample.at, UTC), tenant=sample.tenant,
            namespace=sample.namespace, pool=sample.pool, worker=sample.worker, outcome="ok", reason=sample.reason,
            detail=msgspec.to_builtins(sample),
        )  # fmt: skip
    return now


def _values(**values: object) -> dict[str, object]:
    return {"kind": "routing", "scope": SCOPE, "values": values}


def test_round_robin_would_cost_hits_and_says_so_with_certainty(fleet) -> None:
    now = _record(300)
    found = dry_run(**_values(routing="round_robin"), now=now)
    assert found.decisions > 200 and not found.too_few
    assert found.fidelity is not None and found.fidelity >= 0.95
    assert found.moved > 0.4 * found.decisions
    assert found.hit_share.certain and found.hit_share.difference < -0.2
    assert found.hit_share.low <= found.hit_share.difference <= found.hit_share.high < 0
    assert sum(row.requests_after for row in found.workers) == found.decisions
    assert sum(row.uncached_tokens_after for row in found.workers) > sum(
        row.uncached_tokens_before for row in found.workers
    )


def test_the_policy_in_force_changes_nothing(fleet) -> None:
    now = _record(200)
    found = dry_run(**_values(routing="tidemark"), now=now)
    assert (found.moved, found.hit_share.difference, found.ttft_ms.difference) == (0, 0.0, 0.0)
    assert not found.hit_share.certain and found.spills_before == found.spills_after


def test_a_lower_watermark_moves_fresh_prefixes_off_the_full_worker(fleet) -> None:
    now = _record(300, use=lambda _: {0: 0.7, 1: 0.2, 2: 0.2, 3: 0.2})
    found = dry_run(kind="watermark", scope=SCOPE, values={"low": 0.3, "high": 0.6}, now=now)
    assert found.kv_use_known_share == 1.0 and found.moved > 0
    full = next(row for row in found.workers if row.worker == "llama/w0")
    assert full.uncached_tokens_after < full.uncached_tokens_before


def test_without_kv_use_it_says_that_a_watermark_cannot_be_judged(fleet) -> None:
    now = _record(120)
    found = dry_run(kind="watermark", scope="global", values={"low": 0.1, "high": 0.2}, now=now)
    assert (found.kv_use_known_share, found.moved) == (0.0, 0)


def test_few_decisions_are_called_too_few_and_nothing_is_certain(fleet) -> None:
    now = _record(40)
    found = dry_run(**_values(routing="round_robin"), now=now)
    assert found.too_few and found.decisions <= 40
    assert not found.hit_share.certain and not found.ttft_ms.certain


def test_no_decisions_give_no_figures(fleet) -> None:
    found = dry_run(**_values(routing="ring"))
    assert (found.decisions, found.too_few, found.fidelity, found.hit_share.before) == (0, True, None, None)


def test_only_the_minutes_and_the_scope_asked_for_count(fleet) -> None:
    now = _record(120)
    DecisionRecord.objects.update(at=now - timedelta(minutes=20))
    assert dry_run(**_values(routing="ring"), minutes=15, now=now).decisions == 0
    assert dry_run(**_values(routing="ring"), minutes=30, now=now).decisions > 0
    create_namespace(actor=ACTOR, tenant="alice", slug="other")
    other = {"kind": "routing", "scope": "namespace:alice/other", "values": {"priority": 2}}
    assert dry_run(**other, minutes=30, now=now).decisions == 0


def test_records_that_cannot_be_judged_are_counted_by_reason(fleet) -> None:
    now = _record(10)
    rows = list(DecisionRecord.objects.order_by("at"))
    for row, change in zip(rows, ({"candidates": []}, {"reason": "retry"}, {"worker": 7}), strict=False):
        row.detail |= change
        row.save()
    found = dry_run(**_values(routing="ring"), now=now)
    assert found.skipped == {"no_candidates": 1, "retry": 1, "unreadable": 1} and found.decisions == 7


def test_it_stores_nothing(fleet) -> None:
    now = _record(20)
    set_watermark(actor=ACTOR, scope=SCOPE, low=0.5, high=0.9)
    before = (PolicyRevision.objects.count(), AuditEntry.objects.count())
    dry_run(kind="watermark", scope=SCOPE, values={"low": 0.3, "high": 0.6}, now=now)
    assert (PolicyRevision.objects.count(), AuditEntry.objects.count()) == before


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"minutes": 0}, Invalid),
        ({"minutes": 10**6}, Invalid),
        ({"scope": "pool:none"}, NotFound),
        ({"scope": "galaxy"}, Invalid),
        ({"values": {"routing": "random"}}, Invalid),
    ],
)
def test_a_wrong_question_is_refused(fleet, change: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        dry_run(**(_values(routing="ring") | change))


def test_its_work_is_bounded_and_the_rest_is_named(fleet, monkeypatch) -> None:
    monkeypatch.setattr("controlplane.rollouts.dry_run.DECISIONS_MAX", 20)
    now = _record(60)
    found = dry_run(**_values(routing="ring"), now=now)
    assert 0 < found.decisions <= 20 and found.skipped["older_than_limit"] == 1
    monkeypatch.setattr("controlplane.rollouts.dry_run.CANDIDATES_MAX", 4 * 7)
    assert dry_run(**_values(routing="ring"), now=now).decisions <= 7


def test_it_is_asked_over_rest(alice, bob, charlie, fleet) -> None:
    _record(120)
    body = {"kind": "routing", "scope": SCOPE, "values": {"routing": "round_robin"}, "minutes": 5}
    answer = bob.post("/api/v1/policies/dry-run", body)
    assert answer.status_code == 200, answer.content
    assert answer.json()["decisions"] > 50 and answer.json()["hit_share"]["difference"] < 0
    assert charlie.post("/api/v1/policies/dry-run", body).status_code == 401
    wrong = alice.post("/api/v1/policies/dry-run", body | {"values": {"routing": 5}})
    assert [error["field"] for error in wrong.json()["errors"]] == ["routing"]
