"""Who may ask what, what a question freezes, and what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from threading import Barrier
from typing import Any

import pytest
from django.db import connection

from controlplane.audit.models import AuditEntry
from controlplane.errors import Conflict, ControlError, Forbidden, Invalid
from controlplane.fleet.models import Worker, WorkerPool
from controlplane.policies.services import set_watermark
from controlplane.tenants.roles import access_from
from controlplane.what_if import services
from controlplane.what_if.models import WhatIf
from controlplane.what_if.selectors import what_ifs_of
from tests.what_if.conftest import ask

ALICE = access_from([("tenant_admin", "acme")])
BOB = access_from([("viewer", "acme")])
CHARLIE = access_from([("tenant_admin", "globex")])
LOAD = [{"load_factor": 1.5}]
ASKERS = 10


def test_a_question_freezes_the_pool_as_it_is_and_is_audited(recorded: datetime) -> None:
    set_watermark(actor="user:olga", scope="pool:demo", low=0.5, high=0.8)
    row = ask(recorded, scenarios=[{"more_workers": -1}, {"low": 0.4, "high": 0.7}], gpu_price_per_h=2.5)
    question = row.question
    assert (question["workers"], question["kv_capacity_tokens"]) == (4, 9600 * 16)
    assert question["watermark"] == {"low": 0.5, "high": 0.8} and question["policy"] == "tidemark"
    assert question["good_s"] == 1.5, "the strictest objective of the namespaces"
    assert question["scenarios"] == [
        {"name": "as it is"},
        {"name": "1 fewer worker", "workers": 3},
        {"name": "watermarks 40–70 %", "low": 0.4, "high": 0.7},
    ]
    entry = AuditEntry.objects.get(action="what_if.ask")
    assert (entry.actor, entry.object_id, entry.affects_routing) == ("user:olga", str(row.pk), False)


def test_a_tenant_gets_its_share_of_the_memory(recorded: datetime) -> None:
    row = ask(recorded, access=ALICE, actor="user:alice", tenant="acme", scenarios=LOAD)
    assert 0 < row.question["kv_capacity_tokens"] < 9600 * 16
    assert AuditEntry.objects.get(action="what_if.ask").object_id == f"acme/{row.pk}"


@pytest.mark.parametrize(
    ("access", "values"),
    [
        (ALICE, {}),
        (ALICE, {"tenant": "globex"}),
        (ALICE, {"namespace": "globex/agents"}),
        (BOB, {"tenant": "acme"}),
        (CHARLIE, {"tenant": "acme"}),
        (access_from([("viewer", "")]), {}),
        (access_from([("tenant_admin", "")]), {}),
    ],
)
def test_nobody_asks_beyond_what_they_hold(recorded: datetime, access: Any, values: dict[str, Any]) -> None:
    with pytest.raises(Forbidden):
        ask(recorded, access=access, scenarios=LOAD, **values)
    assert not WhatIf.objects.exists()


def test_levers_of_the_fleet_are_not_a_tenants(recorded: datetime) -> None:
    with pytest.raises(Invalid, match="the fleet's"):
        ask(recorded, access=ALICE, tenant="acme", scenarios=[{"more_workers": 1}])


def test_each_sees_their_own_tenants_questions(recorded: datetime) -> None:
    fleet, own = ask(recorded), ask(recorded, access=ALICE, tenant="acme", scenarios=LOAD)
    other = ask(recorded, access=CHARLIE, tenant="globex", scenarios=LOAD)
    assert {row.pk for row in what_ifs_of(None)} == {fleet.pk, own.pk, other.pk}
    assert [row.pk for row in what_ifs_of(["acme"])] == [own.pk]
    with pytest.raises(Forbidden):
        services.cancel(own.pk, actor="user:charlie", access=CHARLIE)


@pytest.mark.parametrize(
    ("scenarios", "field"),
    [
        ([], "scenarios"),
        ([{"more_workers": 0}], "scenarios"),
        ([{"more_workers": -4}], "scenarios.0.more_workers"),
        ([{"load_factor": 2}, {"low": 0.9}], "scenarios.1.low"),
        ([{"kv_capacity_factor": 99}], "scenarios.0.kv_capacity_factor"),
        ([{"policy": "guess"}], "scenarios.0.policy"),
        ([{"load_factor": 2}, {"load_factor": 2}], "scenarios"),
        ([{"load_factor": 1 + number / 10} for number in range(9)], "scenarios"),
    ],
)
def test_scenarios_that_make_no_sense_are_refused(recorded: datetime, scenarios: Any, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        ask(recorded, scenarios=scenarios)
    assert refused.value.errors[0]["field"] == field


def test_where_little_was_recorded_nothing_is_asked(recorded: datetime) -> None:
    with pytest.raises(Conflict, match="recorded in this range"):
        ask(recorded, from_at=recorded - timedelta(hours=3), to_at=recorded - timedelta(hours=2))
    with pytest.raises(Conflict, match="recorded in this range"):
        ask(recorded, tenant="initech", namespace="initech/reports", scenarios=[{"more_workers": 1}])


def test_a_pool_that_a_tenant_never_used_is_as_an_absent_one(recorded: datetime) -> None:
    """Neither whether it exists nor whether its workers are ready is told (S12)."""
    empty = WorkerPool.objects.create(slug="empty")
    ready = WorkerPool.objects.create(slug="ready")
    Worker.objects.create(pool=ready, slug="w", url="http://127.0.0.1:29999")
    told = set()
    for pool in (empty.slug, ready.slug, "absent"):
        with pytest.raises(ControlError) as refused:
            ask(recorded, access=ALICE, tenant="acme", pool=pool, scenarios=LOAD)
        told.add((type(refused.value), refused.value.status, str(refused.value)))
    assert len(told) == 1, told


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer at a time")
@pytest.mark.django_db(transaction=True)
def test_questions_asked_at_one_moment_fill_the_queue_no_further(recorded: datetime) -> None:
    together = Barrier(ASKERS)

    def asked(_: int) -> bool:
        try:
            together.wait(30)
            ask(recorded)
        except Conflict:
            return False
        finally:
            connection.close()
        return True

    with ThreadPoolExecutor(ASKERS) as pool:
        assert sum(pool.map(asked, range(ASKERS))) == services.WAITING_OF_ONE_MAX
    assert WhatIf.objects.count() == services.WAITING_OF_ONE_MAX


def test_nobody_fills_the_queue_alone(recorded: datetime) -> None:
    rows = [ask(recorded) for _ in range(services.WAITING_OF_ONE_MAX)]
    with pytest.raises(Conflict, match="of your questions wait"):
        ask(recorded)
    ask(recorded, actor="user:vera")
    services.cancel(rows[0].pk, actor="user:olga", access=access_from([("operator", "")]))
    ask(recorded)
