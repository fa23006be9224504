"""Thirty seeded days, and what the tests of reports have around them: no Valkey, receivers on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import pytest
from django.db import transaction

from controlplane.reports import producing, services
from controlplane.reports.models import ReportRun, ReportSchedule
from tests.reports import seed
from tests.webhooks.conftest import receiver as receiver

ACTOR = "user:olga"


@pytest.fixture(autouse=True)
def surroundings(settings, tmp_path, monkeypatch) -> None:
    settings.REDIS_URL = f"unix://{tmp_path}/none.sock"
    monkeypatch.setattr(settings.CONFIG, "webhook_networks", ["127.0.0.0/8"])


@pytest.fixture(scope="module")
def month(request, django_db_setup, django_db_blocker) -> Iterator[datetime]:
    """The end of thirty days of traffic, or of the module's DAYS, written once for the module."""
    with django_db_blocker.unblock(), transaction.atomic():
        end = seed.full_hour()
        seed.make_fleet()
        seed.tell(end, days=getattr(request.module, "DAYS", seed.DAYS))
        seed.changes(ACTOR)
        yield end
        transaction.set_rollback(True)


@pytest.fixture(scope="module")
def fleet_run(month: datetime) -> ReportRun:
    """A report of the whole fleet, made."""
    return made(schedule("fleet-monthly", gpu_hour_cost=3.6, time_zone="Europe/Berlin"))


def schedule(slug: str = "weekly", **values: object) -> ReportSchedule:
    return services.create_schedule(actor=ACTOR, slug=slug, **{"cron": "0 8 * * 1", **values})


def made(row: ReportSchedule) -> ReportRun:
    run = services.run_now(row.pk, actor=ACTOR)
    assert producing.make(run.pk) == "done"
    return ReportRun.objects.get(pk=run.pk)
