"""Placement rules: audited, ended by time or with one click, and carried to the routers."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.audit.models import AuditEntry
from controlplane.errors import Conflict, Invalid, NotFound, Stale
from controlplane.placements import services
from controlplane.placements.models import PlacementRule
from controlplane.placements.selectors import in_force
from controlplane.snapshots.compiler import compile_snapshot
from controlplane.snapshots.services import publication_due

PREFIX = "9f3a77c1d2000001"


def spread(**changes: object) -> PlacementRule:
    values = {
        "actor": "user:alice", "namespace": "acme/support", "pool": "llama", "prefix": PREFIX, "homes": 3,
        "until": timezone.now() + timedelta(hours=1), "reason": "hot",
    }  # fmt: skip
    return services.spread_prefix(**(values | changes))  # type: ignore[arg-type]


def test_a_rule_is_in_the_snapshot_with_its_end(support, pool) -> None:
    row = spread()
    (rule,) = compile_snapshot().placements
    assert (rule.namespace, rule.pool, rule.prefix, rule.homes) == ("acme/support", "llama", PREFIX, 3)
    assert rule.until == row.until.timestamp()
    assert publication_due()


def test_it_is_audited_with_what_was_before(support, pool) -> None:
    row = spread()
    spread(homes=5, actor="user:bob", reason="hotter")
    services.revert_placement(row.pk, actor="user:alice", reason="calm")
    entries = list(AuditEntry.objects.filter(object_type="placement").order_by("id"))
    assert [(entry.action, entry.actor, entry.reason) for entry in entries] == [
        ("placement.set", "user:alice", "hot"),
        ("placement.set", "user:bob", "hotter"),
        ("placement.revert", "user:alice", "calm"),
    ]
    assert entries[1].before is not None and entries[1].after is not None
    assert (entries[1].before["homes"], entries[1].after["homes"]) == (3, 5)
    assert entries[0].object_id == f"acme/support:llama:{PREFIX}"


def test_a_prefix_has_one_rule_at_a_time(support, pool) -> None:
    first = spread()
    again = spread(homes=4)
    assert (again.pk, again.revision) == (first.pk, 2)
    services.revert_placement(first.pk, actor="user:alice")
    assert spread().pk != first.pk
    assert len(compile_snapshot().placements) == 1


def test_a_reverted_rule_is_in_no_snapshot_and_stays_as_history(support, pool) -> None:
    row = spread()
    services.revert_placement(row.pk, actor="user:alice")
    assert compile_snapshot().placements == ()
    row.refresh_from_db()
    assert (row.outcome, row.ended_by) == ("reverted", "user:alice")
    with pytest.raises(Conflict):
        services.revert_placement(row.pk, actor="user:alice")


def test_it_expires_once_and_is_forgotten_after_thirty_days(support, pool) -> None:
    row, now = spread(), timezone.now()
    later = row.until + timedelta(seconds=1)
    assert list(in_force(now=now)) == [row]
    assert list(in_force(now=later)) == []
    assert (services.expire_placements(now), services.expire_placements(later)) == (0, 1)
    assert services.expire_placements(later) == 0
    assert PlacementRule.objects.get().outcome == "expired"
    services.expire_placements(timezone.now() + timedelta(days=31))
    assert not PlacementRule.objects.exists()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"homes": 1}, "homes"),
        ({"homes": 65}, "homes"),
        ({"prefix": "no hash at all!"}, "prefix"),
        ({"prefix": "9F3A77C1D2000001"}, "prefix"),
        ({"until": timezone.now() - timedelta(seconds=1)}, "until"),
        ({"until": timezone.now() + timedelta(days=8)}, "until"),
    ],
)
def test_a_wrong_value_is_named(support, pool, changes: dict[str, object], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        spread(**changes)
    assert {error["field"] for error in refused.value.errors} == {field}
    assert not PlacementRule.objects.exists()


def test_what_is_not_there_is_not_found(support, pool) -> None:
    for changes in ({"namespace": "acme/none"}, {"pool": "none"}):
        with pytest.raises(NotFound):
            spread(**changes)
    with pytest.raises(NotFound):
        services.revert_placement(1, actor="user:alice")


def test_a_change_on_an_older_view_is_refused(support, pool) -> None:
    row = spread()
    spread(homes=4)
    with pytest.raises(Stale):
        services.revert_placement(row.pk, actor="user:alice", if_revision=1)


def test_their_number_is_bounded(support, pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "IN_FORCE_MAX", 2)
    for number in range(2):
        spread(prefix=f"{number:016x}")
    with pytest.raises(Conflict):
        spread(prefix="f" * 16)
    assert spread(prefix=f"{0:016x}", homes=8).homes == 8


def test_it_goes_with_its_namespace(support, pool) -> None:
    spread()
    support.delete()
    assert compile_snapshot().placements == ()
