"""At most three deliveries of one piece of work, then a dead letter, which a person can have tried anew (S20)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.conf import settings
from django.utils import timezone
from rest_framework.test import APIClient

from controlplane.celery import app
from controlplane.deadletters import services
from controlplane.deadletters.models import TaskDelivery
from controlplane.deadletters.services import DELIVERIES_MAX, bounded
from controlplane.fleet.models import Finding
from controlplane.isolation import canary_services, tasks

pytestmark = pytest.mark.django_db


class Broken(Exception):
    pass


def _fail() -> bool:
    """One delivery that fails. Whether the work was begun."""
    begun = False
    with pytest.raises(Broken), bounded("canary", 7) as allowed:
        begun = allowed
        raise Broken("tm_secret_key")
    return begun


def _begin_and_die() -> bool:
    """One delivery whose process is killed: nothing of what follows runs."""
    return bounded("canary", 7).__enter__()


def test_work_that_succeeds_leaves_nothing() -> None:
    with bounded("canary", 7) as allowed:
        assert allowed and TaskDelivery.objects.get().deliveries == 1
    assert not TaskDelivery.objects.exists()


def test_the_third_failure_makes_a_dead_letter_and_a_finding_without_the_words_of_the_error() -> None:
    assert [_fail() for _ in range(DELIVERIES_MAX)] == [True] * 3
    row = TaskDelivery.objects.get()
    assert row.dead_at is not None and row.error.startswith("Broken at test_dead_letters.py:")
    assert Finding.objects.get(kind="task_given_up", resolved_at=None).subject == "canary 7"
    with bounded("canary", 7) as allowed:
        assert not allowed
    assert "secret" not in row.error + Finding.objects.get().message


def test_work_that_kills_its_process_is_given_up_too() -> None:
    assert [_begin_and_die() for _ in range(5)] == [True, True, True, False, False]
    assert TaskDelivery.objects.get().dead_at is not None
    with bounded("canary", 8) as allowed:
        assert allowed, "other work goes on"


def test_a_success_after_failures_begins_the_count_anew() -> None:
    _fail(), _fail()
    with bounded("canary", 7):
        pass
    assert [_fail(), _fail()] == [True, True]
    assert TaskDelivery.objects.get().dead_at is None


def test_a_dead_letter_is_tried_again_after_an_hour_and_its_finding_ends_with_it() -> None:
    for _ in range(DELIVERIES_MAX):
        _fail()
    TaskDelivery.objects.update(dead_at=timezone.now() - timedelta(minutes=61))
    with bounded("canary", 7) as allowed:
        assert allowed
    assert not Finding.objects.filter(resolved_at=None).exists() and not TaskDelivery.objects.exists()


def test_a_person_sees_it_and_has_it_tried(alice: APIClient, bob: APIClient) -> None:
    for _ in range(DELIVERIES_MAX):
        _fail()
    [letter] = bob.get("/api/v1/dead-letters").json()["items"]
    assert (letter["task"], letter["subject"], letter["deliveries"]) == ("canary", "7", 3)
    assert bob.post(f"/api/v1/dead-letters/{letter['id']}/retry").status_code == 403
    assert alice.post(f"/api/v1/dead-letters/{letter['id']}/retry").status_code == 202
    assert alice.post(f"/api/v1/dead-letters/{letter['id']}/retry").status_code == 409
    assert bob.get("/api/v1/dead-letters").json()["items"] == []
    with bounded("canary", 7) as allowed:
        assert allowed


def test_a_worker_whose_canary_always_fails_does_not_keep_the_others_waiting(monkeypatch) -> None:
    calls = []

    def run_for(worker_pk: int) -> list[object]:
        calls.append(worker_pk)
        if worker_pk == 3:
            raise Broken
        return []

    monkeypatch.setattr(canary_services, "run_for", run_for)
    monkeypatch.setattr(tasks, "workers_due", lambda now: [3, 4])
    for _ in range(DELIVERIES_MAX):
        with pytest.raises(Broken):
            tasks._ask_for(60)
    assert tasks._ask_for(60) == 1
    assert calls == [3] * DELIVERIES_MAX + [4]


def test_old_rows_are_forgotten() -> None:
    _fail()
    TaskDelivery.objects.update(last_at=timezone.now() - timedelta(days=31))
    assert services.forget_old() == 1


def test_every_task_travels_as_json_and_has_its_limits() -> None:
    assert app.conf.task_serializer == "json" and list(app.conf.accept_content) == ["json"]
    app.loader.import_default_modules()
    own = [task for name, task in app.tasks.items() if name.startswith("controlplane.")]
    assert len(own) > 15
    for task in own:
        limit = task.time_limit or app.conf.task_time_limit
        soft = task.soft_time_limit or app.conf.task_soft_time_limit
        assert 0 < soft < limit <= settings.CELERY_BROKER_TRANSPORT_OPTIONS["visibility_timeout"], task.name
        assert not task.acks_late, "a task that kills its process must not come back by itself"
