"""Staged roll-outs: a share of routers, the guard's word, automatic and one-click rollback, every step audited."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.audit.models import AuditEntry
from controlplane.errors import Conflict, Invalid, NotFound, Stale
from controlplane.policies.models import Rollout
from controlplane.policies.revisions import history
from controlplane.policies.selectors import find_policy
from controlplane.policies.services import set_watermark
from controlplane.rollouts import services
from controlplane.rollouts.driver import drive_rollouts
from controlplane.rollouts.samples import SETTLE_S
from controlplane.rollouts.selectors import progress_of
from controlplane.rollouts.services import advance_rollout, roll_back, start_rollout
from controlplane.snapshots.compiler import compile_snapshot
from controlplane.telemetry.ingest import apply_entries
from router.contract.histogram import bucket_of
from router.contract.telemetry import RequestRow, RouterState, Shipment, encode_shipment
from router.core.variants import settled
from tests.control.conftest import ACTOR

POOL = "pool:llama"
ROUTERS = [f"router-{number}" for number in range(10)]
VALUES = {"low": 0.3, "high": 0.5}


@pytest.fixture(autouse=True)
def routers(monkeypatch) -> None:
    monkeypatch.setattr(services, "fresh_routers", lambda: list(ROUTERS))


@pytest.fixture
def stable(pool) -> None:
    set_watermark(actor=ACTOR, scope=POOL, low=0.6, high=0.8)


def _start(**more: object) -> Rollout:
    values = {"kind": "watermark", "scope": POOL, "values": VALUES, "reason": "less thrash", "stage_s": 60}
    return start_rollout(actor=ACTOR, **(values | more))


def _routers_with(rollout: Rollout) -> set[str]:
    snapshot = compile_snapshot()
    return {
        router
        for router in ROUTERS
        if settled(snapshot, router=router, now=0.0).snapshot.pools["llama"].watermark.high == 0.5
    }


_seq = iter(range(10**9))


def _serve(rollout: Rollout, requests: int, **rows: dict[str, object]) -> None:
    """A second of traffic on each router; `candidate` and `others` change the row of routers with and without."""
    at = rollout.stage_at + timedelta(seconds=SETTLE_S + 1)
    entries = []
    for router in ROUTERS:
        has_it = router in _routers_with(rollout)
        fields = {"ttft_hit": {bucket_of(100): requests}, "hit_tokens": 500 * requests}
        fields |= rows.get("candidate" if has_it else "others", {})
        row = RequestRow(pool="llama", namespace="acme/support", requests=requests, hit_prompt_tokens=1000 * requests)
        for name, value in fields.items():
            setattr(row, name, value)
        state = RouterState(1, 0.0, 0, 0, 0, variants=[rollout.variant_id] if has_it else [])
        entries.append(encode_shipment(Shipment(router, "b", next(_seq), at.timestamp(), requests=[row], router=state)))
    applied = apply_entries(entries, now=at)
    assert applied.applied == len(ROUTERS), applied.refused


def _tick(rollout: Rollout, *, after_s: float) -> Rollout:
    drive_rollouts(rollout.stage_at + timedelta(seconds=after_s))
    rollout.refresh_from_db()
    return rollout


def test_it_grows_by_stages_and_ends_in_force_everywhere(stable) -> None:
    rollout = _start()
    assert find_policy(POOL).high == 0.8, "what stands is not touched"
    sizes = []
    for _ in range(3):
        sizes.append(len(_routers_with(rollout)))
        _serve(rollout, 300)
        assert _tick(rollout, after_s=61).state == "running", "the stage's time is not over"
        rollout = _tick(rollout, after_s=80)
    assert sizes == [1, 5, 10]
    assert (rollout.state, find_policy(POOL).high) == ("completed", 0.5)
    assert [(row.number, row.origin, row.repeats) for row in history("watermark", POOL).order_by("number")] == [
        (1, "set", None),
        (2, "candidate", None),
        (3, "rollout", 2),
    ]
    assert compile_snapshot().variants == () and compile_snapshot().pools["llama"].watermark.high == 0.5
    steps = [entry.action for entry in AuditEntry.objects.order_by("id") if entry.action.startswith("rollout.")]
    assert steps == ["rollout.start", "rollout.advance", "rollout.advance", "rollout.complete"]


@pytest.mark.parametrize(
    ("candidate", "breached"),
    [
        ({"errors": {"upstream_error": 60}}, "errors"),
        ({"ttft_hit": {bucket_of(400): 300}}, "ttft"),
        ({"hit_tokens": 100 * 300}, "hits"),
    ],
)
def test_a_breached_guard_rolls_back_by_itself(stable, candidate: dict[str, object], breached: str) -> None:
    rollout = _start()
    _serve(rollout, 300, candidate=candidate)
    rollout = _tick(rollout, after_s=10)
    assert (rollout.state, rollout.ended_by) == ("rolled_back", "system:rollouts")
    assert rollout.verdict["breached"] == [breached] and rollout.outcome == rollout.verdict["sentence"]
    assert _routers_with(rollout) == set() and find_policy(POOL).high == 0.8
    entry = AuditEntry.objects.order_by("-id").first()
    assert (entry.action, entry.actor, entry.affects_routing) == ("rollout.rollback", "system:rollouts", True)


def test_clients_own_errors_are_no_breach(stable) -> None:
    rollout = _start()
    _serve(rollout, 300, candidate={"errors": {"bad_request": 200}})
    assert _tick(rollout, after_s=10).state == "running"


def test_too_few_requests_hold_the_stage_and_say_so(stable) -> None:
    rollout = _start()
    _serve(rollout, 50)
    rollout = _tick(rollout, after_s=3600)
    assert (rollout.stage, rollout.verdict["state"]) == (0, "wait")
    assert rollout.verdict["sentence"] == "Too few requests to judge: 50 of 200."
    assert advance_rollout(rollout.pk, actor=ACTOR, reason="a quiet night").stage == 1


def test_a_single_router_is_compared_with_the_time_before(stable, monkeypatch) -> None:
    monkeypatch.setattr(services, "fresh_routers", lambda: ["router-3"])
    monkeypatch.setattr("tests.rollouts.test_rollouts.ROUTERS", ["router-3"])
    before = timezone.now() - timedelta(minutes=5)
    row = RequestRow(
        pool="llama", namespace="acme/support", requests=500, hit_prompt_tokens=500_000, hit_tokens=250_000,
        ttft_hit={bucket_of(100): 500},
    )  # fmt: skip
    shipment = Shipment(
        "router-3", "b", next(_seq), before.timestamp(), requests=[row], router=RouterState(1, 0, 0, 0, 0)
    )
    apply_entries([encode_shipment(shipment)], now=before)
    rollout = _start()
    assert _routers_with(rollout) == {"router-3"}
    _serve(rollout, 300, candidate={"ttft_hit": {bucket_of(900): 300}})
    rollout = _tick(rollout, after_s=10)
    assert (rollout.state, rollout.verdict["others"]["requests"]) == ("rolled_back", 500)


def test_traffic_of_other_pools_does_not_count(stable) -> None:
    rollout = _start()
    _serve(rollout, 300, candidate={"pool": "other", "errors": {"upstream_error": 300}})
    assert _tick(rollout, after_s=10).verdict["candidate"]["requests"] == 0


def test_what_ends_right_after_a_stage_began_was_decided_before_it(stable) -> None:
    rollout = _start()
    rollout.stage_at -= timedelta(seconds=SETTLE_S)
    _serve(rollout, 300, candidate={"errors": {"upstream_error": 300}})
    rollout.refresh_from_db()
    assert _tick(rollout, after_s=10).state == "running"


def test_one_click_ends_it_everywhere(stable) -> None:
    rollout = _start()
    with pytest.raises(Stale):
        roll_back(rollout.pk, actor=ACTOR, reason="no", if_revision=7)
    assert roll_back(rollout.pk, actor="user:carol", reason="no").ended_by == "user:carol"
    assert compile_snapshot().variants == ()
    with pytest.raises(Conflict):
        advance_rollout(rollout.pk, actor=ACTOR)
    assert set_watermark(actor=ACTOR, scope=POOL, low=0.5, high=0.6).revision == 3


def test_the_page_says_which_routers_have_it(stable) -> None:
    rollout = _start()
    _serve(rollout, 10)
    progress = progress_of(rollout, now=rollout.stage_at + timedelta(seconds=10))
    assert set(progress.routers_with) == _routers_with(rollout)
    assert len(progress.routers_without) == 9


def test_a_global_watermark_reaches_pools_without_their_own(pool) -> None:
    rollout = _start(scope="global")
    assert len(_routers_with(rollout)) == 1
    roll_back(rollout.pk, actor=ACTOR, reason="")
    set_watermark(actor=ACTOR, scope=POOL, low=0.6, high=0.8)
    assert _routers_with(_start(scope="global")) == set()


def test_namespace_priorities_are_rolled_out_too(support, pool) -> None:
    _start(kind="routing", scope="namespace:acme/support", values={"priority": 3}, stages=[1])
    found = settled(compile_snapshot(), router="any", now=0.0).snapshot.namespaces["acme/support"]
    assert found.priority == 3


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"stages": []}, "stages"),
        ({"stages": [0.5, 0.1, 1]}, "stages"),
        ({"stages": [0.5]}, "stages"),
        ({"stages": [0, 1]}, "stages"),
        ({"stage_s": 0}, "stage_s"),
        ({"guards": {"colour": 1}}, "guards.colour"),
        ({"guards": {"ttft_p95_ratio_max": 0.5}}, "guards.ttft_p95_ratio_max"),
        ({"guards": {"requests_min": 1.5}}, "guards.requests_min"),
        ({"values": {"low": 0.9, "high": 0.5}}, "low"),
    ],
)
def test_a_wrong_roll_out_names_its_field(stable, more: dict[str, object], field: str) -> None:
    with pytest.raises(Invalid) as caught:
        _start(**more)
    assert caught.value.errors[0]["field"] == field
    assert not Rollout.objects.exists()


def test_one_runs_at_a_time_and_not_under_an_override(stable) -> None:
    with pytest.raises(Invalid, match="already"):
        _start(values={"low": 0.6, "high": 0.8})
    with pytest.raises(NotFound):
        _start(scope="pool:none")
    with pytest.raises(Stale):
        _start(if_revision=9)
    _start()
    with pytest.raises(Conflict):
        _start(values={"low": 0.1, "high": 0.2})
    set_watermark(actor=ACTOR, scope="global", low=0.5, high=0.8)  # another scope is free
    other = timezone.now() + timedelta(hours=1)
    roll_back(Rollout.objects.get().pk, actor=ACTOR, reason="")
    set_watermark(actor=ACTOR, scope=POOL, low=0.2, high=0.4, expires_at=other)
    with pytest.raises(Conflict, match="override"):
        _start()


def test_it_ends_with_its_pool(stable, pool) -> None:
    rollout = _start()
    pool.workers.all().delete()
    pool.delete()
    rollout = _tick(rollout, after_s=10)
    assert (rollout.state, rollout.outcome) == ("rolled_back", "Its pool or namespace is gone.")


def test_two_ticks_at_once_take_one_step(stable) -> None:
    rollout = _start()
    _serve(rollout, 300)
    later = rollout.stage_at + timedelta(seconds=80)
    stale = Rollout.objects.get()
    drive_rollouts(later)
    from controlplane.rollouts import driver

    driver._drive(stale, later)
    rollout.refresh_from_db()
    assert rollout.stage == 1


def test_it_is_started_shown_and_rolled_back_over_rest(alice, bob, stable) -> None:
    body = {"kind": "watermark", "scope": POOL, "values": VALUES, "guards": {"requests_min": 10}}
    assert bob.post("/api/v1/rollouts", body).status_code == 403
    started = alice.post("/api/v1/rollouts", body, headers={"If-Match": '"1"'})
    assert started.status_code == 201 and started.json()["guards"]["requests_min"] == 10
    path = f"/api/v1/rollouts/{started.json()['id']}"
    assert bob.get(path).json()["rollout"]["state"] == "running"
    assert alice.post(f"{path}/advance", {}).json()["stage"] == 1
    assert alice.post(f"{path}/rollback", {"reason": "no"}, headers={"If-Match": '"1"'}).status_code == 412
    assert alice.post(f"{path}/rollback", {"reason": "no"}).json()["state"] == "rolled_back"
    assert alice.get("/api/v1/rollouts?state=rolled_back").json()["items"][0]["outcome"] == "no"
    assert alice.get("/api/v1/rollouts/999").status_code == 404
    wrong = alice.post("/api/v1/rollouts", body | {"stages": [0.5]})
    assert [error["field"] for error in wrong.json()["errors"]] == ["stages"]
