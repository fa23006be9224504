"""Policies by revision: immutable, with author and reason; rollback repeats an earlier one, overrides end."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.audit.models import AuditEntry
from controlplane.errors import Conflict, Invalid, NotFound, Stale
from controlplane.policies.models import PolicyRevision, Rollout, WatermarkPolicy
from controlplane.policies.revisions import history
from controlplane.policies.selectors import find_policy
from controlplane.policies.services import (
    clear_watermark,
    expire_overrides,
    rollback_policy,
    set_routing,
    set_watermark,
)
from controlplane.snapshots.compiler import compile_snapshot
from router.contract.snapshot import Watermark
from router.core.variants import settled
from tests.control.conftest import ACTOR

POOL = "pool:llama"


def _numbers(kind: str = "watermark", scope: str = POOL) -> list[tuple[int, str, object]]:
    rows = history(kind, scope).order_by("number")
    return [(row.number, row.origin, row.values and row.values.get("high")) for row in rows]


def test_each_change_writes_a_revision_with_author_and_reason(pool) -> None:
    set_watermark(actor=ACTOR, scope=POOL, low=0.4, high=0.6, reason="pressure")
    row = set_watermark(actor="user:carol", scope=POOL, low=0.5, high=0.7)
    first, second = history("watermark", POOL).order_by("number")
    assert (first.author, first.reason, first.values["low"]) == (ACTOR, "pressure", 0.4)
    assert (second.author, row.revision) == ("user:carol", second.number)


def test_the_global_watermark_has_a_history_from_the_start(db) -> None:
    (first,) = history("watermark", "global")
    assert first.values == {"low": 0.65, "high": 0.85, "dwell_s": 0.0}
    assert WatermarkPolicy.objects.get().revision == first.number == 1


def test_a_revision_is_neither_changed_nor_deleted(pool) -> None:
    set_watermark(actor=ACTOR, scope=POOL, low=0.4, high=0.6)
    row = history("watermark", POOL).get()
    row.reason = "another"
    with pytest.raises(ValueError, match="cannot change"):
        row.save()
    with pytest.raises(ValueError, match="stays"):
        row.delete()


def test_numbers_go_on_after_a_clearing(pool) -> None:
    set_watermark(actor=ACTOR, scope=POOL, low=0.4, high=0.6)
    clear_watermark(actor=ACTOR, scope=POOL)
    row = set_watermark(actor=ACTOR, scope=POOL, low=0.4, high=0.7, if_revision=0)
    assert row.revision == 3
    assert _numbers() == [(1, "set", 0.6), (2, "clear", None), (3, "set", 0.7)]


def test_a_rollback_is_a_revision_equal_to_the_one_before(pool) -> None:
    set_watermark(actor=ACTOR, scope=POOL, low=0.4, high=0.6)
    set_watermark(actor=ACTOR, scope=POOL, low=0.4, high=0.9)
    done = rollback_policy(kind="watermark", scope=POOL, actor=ACTOR, if_revision=2, reason="TTFT rose")
    assert (done.number, done.origin, done.repeats, done.values["high"]) == (3, "rollback", 1, 0.6)
    assert find_policy(POOL).high == 0.6
    entry = AuditEntry.objects.order_by("-id").first()
    assert (entry.action, entry.before["high"], entry.after["high"]) == ("watermark.rollback", 0.9, 0.6)
    assert rollback_policy(kind="watermark", scope=POOL, actor=ACTOR).values["high"] == 0.9


def test_a_rollback_brings_back_what_was_cleared_and_clears_what_was_not(pool) -> None:
    set_watermark(actor=ACTOR, scope=POOL, low=0.4, high=0.6)
    clear_watermark(actor=ACTOR, scope=POOL)
    assert rollback_policy(kind="watermark", scope=POOL, actor=ACTOR).values["high"] == 0.6
    assert rollback_policy(kind="watermark", scope=POOL, actor=ACTOR, to=2).values is None
    assert find_policy(POOL) is None
    with pytest.raises(Conflict):
        rollback_policy(kind="watermark", scope=POOL, actor=ACTOR, to=2)


def test_a_rollback_needs_a_revision_and_the_right_one(pool) -> None:
    with pytest.raises(NotFound):
        rollback_policy(kind="watermark", scope=POOL, actor=ACTOR)
    set_watermark(actor=ACTOR, scope=POOL, low=0.4, high=0.6)
    with pytest.raises(NotFound):
        rollback_policy(kind="watermark", scope=POOL, actor=ACTOR, to=7)
    with pytest.raises(Stale):
        rollback_policy(kind="watermark", scope=POOL, actor=ACTOR, to=1, if_revision=9)


def test_routing_values_replace_the_settings_in_the_snapshot(support, pool) -> None:
    set_routing(actor=ACTOR, scope=POOL, values={"spill_outstanding": 4, "routing": None})
    set_routing(actor=ACTOR, scope="namespace:acme/support", values={"priority": 2, "ttft_slo_ms": 900})
    snapshot = compile_snapshot()
    assert (snapshot.pools["llama"].spill_outstanding, snapshot.pools["llama"].routing) == (4, "tidemark")
    namespace = snapshot.namespaces["acme/support"]
    assert (namespace.priority, namespace.ttft_slo_ms, namespace.shed_over_slo) == (2, 900, False)


@pytest.mark.parametrize(
    ("scope", "values", "field"),
    [
        (POOL, {"virtual_nodes": 0}, "virtual_nodes"),
        (POOL, {"virtual_nodes": True}, "virtual_nodes"),
        (POOL, {"routing": "random"}, "routing"),
        (POOL, {"priority": 1}, "priority"),
        (POOL, {"colour": 1}, "colour"),
        ("namespace:acme/support", {"priority": 5}, "priority"),
        ("namespace:acme/support", {"ttft_slo_ms": float("nan")}, "ttft_slo_ms"),
        ("namespace:acme/support", {"ttft_slo_ms": 10**400}, "ttft_slo_ms"),
        ("namespace:acme/support", {"shed_over_slo": 1}, "shed_over_slo"),
        ("global", {"routing": "ring"}, "scope"),
    ],
)
def test_a_wrong_routing_value_is_named(support, pool, scope: str, values: dict[str, object], field: str) -> None:
    with pytest.raises(Invalid) as caught:
        set_routing(actor=ACTOR, scope=scope, values=values)
    assert [error["field"] for error in caught.value.errors] == [field]
    assert not PolicyRevision.objects.filter(kind="routing").exists()


def test_a_routing_policy_that_sets_nothing_is_refused(pool) -> None:
    with pytest.raises(Invalid, match="at least one"):
        set_routing(actor=ACTOR, scope=POOL, values={"routing": None})


def test_an_override_ends_on_the_router_by_its_own_clock(pool) -> None:
    until = timezone.now() + timedelta(minutes=10)
    set_watermark(actor=ACTOR, scope=POOL, low=0.4, high=0.6)
    set_watermark(actor=ACTOR, scope=POOL, low=0.2, high=0.3, expires_at=until)
    snapshot = compile_snapshot()
    assert snapshot.pools["llama"].watermark == Watermark(0.4, 0.6, 0, POOL)
    during = settled(snapshot, router="r1", now=until.timestamp() - 1)
    assert during.snapshot.pools["llama"].watermark == Watermark(0.2, 0.3, 0, POOL)
    after = settled(snapshot, router="r1", now=until.timestamp())
    assert after.snapshot.pools["llama"].watermark == Watermark(0.4, 0.6, 0, POOL)


def test_the_tick_puts_back_what_stood_before_an_override_of_an_override(pool) -> None:
    soon = timezone.now() + timedelta(minutes=10)
    set_watermark(actor=ACTOR, scope=POOL, low=0.4, high=0.6)
    set_watermark(actor=ACTOR, scope=POOL, low=0.2, high=0.3, expires_at=soon)
    set_watermark(actor=ACTOR, scope=POOL, low=0.2, high=0.4, expires_at=soon)
    assert expire_overrides(now=soon - timedelta(seconds=1)) == 0
    assert expire_overrides(now=soon) == 1
    row = find_policy(POOL)
    assert (row.high, row.expires_at, row.standing) == (0.6, None, None)
    assert _numbers()[-1] == (4, "expiry", 0.6)
    assert expire_overrides(now=soon) == 0


def test_an_override_without_anything_behind_it_leaves_the_wider_scope(support, pool) -> None:
    soon = timezone.now() + timedelta(minutes=10)
    scope = "namespace:acme/support"
    set_watermark(actor=ACTOR, scope=scope, low=0.2, high=0.3, expires_at=soon)
    assert compile_snapshot().namespaces["acme/support"].watermark is None
    set_routing(actor=ACTOR, scope=scope, values={"priority": 3}, expires_at=soon)
    assert settled(compile_snapshot(), router="r", now=0).snapshot.namespaces["acme/support"].priority == 3
    assert expire_overrides(now=soon) == 2
    assert find_policy(scope) is None
    assert compile_snapshot().variants == ()


def test_the_global_watermark_and_the_past_take_no_end(pool) -> None:
    for scope, shift in (("global", 60), (POOL, -60)):
        with pytest.raises(Invalid):
            set_watermark(
                actor=ACTOR, scope=scope, low=0.2, high=0.3, expires_at=timezone.now() + timedelta(seconds=shift)
            )


def test_nobody_changes_a_policy_under_a_roll_out(pool) -> None:
    set_watermark(actor=ACTOR, scope=POOL, low=0.4, high=0.6)
    now = timezone.now()
    Rollout.objects.create(
        kind="watermark", scope=POOL, candidate=2, values={}, stages=[1], author=ACTOR, started_at=now, stage_at=now
    )
    for change in (
        lambda: set_watermark(actor=ACTOR, scope=POOL, low=0.4, high=0.7),
        lambda: clear_watermark(actor=ACTOR, scope=POOL),
        lambda: rollback_policy(kind="watermark", scope=POOL, actor=ACTOR, to=1),
    ):
        with pytest.raises(Conflict, match="roll-out"):
            change()
