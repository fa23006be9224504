"""From an empty installation to the first hit: what is missing, in the order in which it is done."""

from __future__ import annotations

from datetime import datetime

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.fleet.models import PoolModel, WorkerPool
from controlplane.snapshots.models import RouterStatus
from dashboard import fragments
from dashboard.first_run import first_run
from dashboard.scope import PageState
from tests.dashboard import story

pytestmark = pytest.mark.django_db


def _done(now: datetime) -> dict[str, bool]:
    found = first_run(PageState().scope(now), now=now)
    return {step.key: step.done for step in found.steps}


def test_an_empty_installation_lacks_everything_and_says_what_to_do(operator: Client, now: datetime) -> None:
    assert not any(_done(now).values())
    fleet = operator.get("/").content.decode()
    assert 'href="/first-run/' in fleet, "the fleet page of an empty installation leads there"
    body = operator.get("/first-run/").content.decode()
    assert "0 of 6 done" in body
    for words in ("python -m router", 'href="/pools/add/"', 'href="/workers/add/"', 'href="/onboarding/"'):
        assert words in body, words


def test_each_thing_that_is_there_is_ticked_off(now: datetime) -> None:
    RouterStatus.objects.create(router_id="r1", boot="b", snapshot_version=1, seen_at=now)
    assert _done(now)["router"]
    pool = WorkerPool.objects.create(slug="p")
    PoolModel.objects.create(pool=pool, name="m")
    assert _done(now)["pool"] and not _done(now)["worker"]
    story.make_fleet()
    done = _done(now)
    assert done["tenant"] and not done["worker"], "a worker that was never polled does not answer"
    story.tell(now, minutes=2)
    assert all(_done(now).values())


def test_a_silent_router_is_no_router(now: datetime) -> None:
    RouterStatus.objects.create(
        router_id="r1", boot="b", snapshot_version=1, seen_at=now - timezone.timedelta(seconds=60)
    )
    assert not _done(now)["router"]


def test_a_pool_is_made_on_the_way(operator: Client) -> None:
    sent = {"slug": "llama", "name": "", "models": "m1, m2", "block_size": "32"}
    assert operator.post("/pools/add/", sent)["location"] == "/workers/add/"
    pool = WorkerPool.objects.get()
    assert pool.block_size == 32 and sorted(pool.models.values_list("name", flat=True)) == ["m1", "m2"]
    again = operator.post("/pools/add/", {**sent, "slug": "other", "models": "m1"})
    assert again.status_code in (409, 422) and not WorkerPool.objects.filter(slug="other").exists()
    wrong = operator.post("/pools/add/", {**sent, "slug": "third", "models": "m9", "block_size": "many"})
    assert wrong.status_code == 422 and b"This is not a number." in wrong.content


def test_a_fleet_that_speaks_leads_nowhere_else(operator: Client, now: datetime) -> None:
    story.make_fleet()
    story.tell(now, minutes=1)
    story.make_rollout(now)
    fragments.forget()
    assert 'href="/first-run/' not in operator.get("/").content.decode()
