"""Links to a report: they end, they can be revoked, they cannot be forged, and each one is in the audit log."""

from __future__ import annotations

from datetime import timedelta

import pytest
import time_machine
from django.test import Client
from django.utils import timezone

from controlplane.audit.models import AuditEntry
from controlplane.errors import Conflict, Invalid, NotFound
from controlplane.reports import services
from controlplane.reports.models import ReportRun, ReportShare
from controlplane.reports.sharing import open_shared, revoke_share, share
from tests.reports.conftest import ACTOR, made, schedule

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(db: None) -> ReportRun:
    return made(schedule(name="Shown to all", formats=["html"]))


def test_whoever_has_the_link_sees_the_report_and_nothing_else(run: ReportRun) -> None:
    shared = share(run.pk, actor=ACTOR, days=7)
    answer = Client().get(shared.path)
    assert answer.status_code == 200 and b"Shown to all" in answer.content and b"Sign out" not in answer.content
    assert "default-src 'none'" in answer["content-security-policy"] and "sandbox" in answer["content-security-policy"]
    assert answer["referrer-policy"] == "no-referrer" and "no-store" in answer["cache-control"]
    shared.share.refresh_from_db()
    assert shared.share.opened == 1 and shared.share.last_opened_at
    assert Client().get(f"/reports/runs/{run.pk}/").status_code == 302, "the page itself still asks to sign in"


def test_it_ends(run: ReportRun) -> None:
    path = share(run.pk, actor=ACTOR, days=7).path
    with time_machine.travel(timezone.now() + timedelta(days=7, seconds=1)):
        assert Client().get(path).status_code == 404


def test_revoked_it_shows_nothing_at_once(run: ReportRun) -> None:
    shared = share(run.pk, actor=ACTOR, days=7)
    revoke_share(shared.share.pk, actor=ACTOR)
    assert Client().get(shared.path).status_code == 404
    with pytest.raises(Conflict):
        revoke_share(shared.share.pk, actor=ACTOR)
    actions = list(AuditEntry.objects.order_by("id").values_list("action", flat=True))
    assert actions[-2:] == ["report.share", "report.unshare"]


def test_it_cannot_be_forged_and_is_not_kept(run: ReportRun) -> None:
    shared = share(run.pk, actor=ACTOR, days=7)
    token = shared.path.split("/")[-2]
    for wrong in (token[:-1], token + "x", token.replace("~", "~A"), shared.share.nonce, "", "x~y"):
        with pytest.raises(NotFound):
            open_shared(wrong)
    other = ReportShare.objects.create(
        run=run,
        nonce="0" * 32,
        created_by="x",
        created_at=timezone.now(),
        expires_at=timezone.now() + timedelta(days=1),
    )
    with pytest.raises(NotFound):
        open_shared(token.replace(shared.share.nonce, other.nonce))
    kept = str(list(AuditEntry.objects.values_list("after", flat=True))) + str(shared)
    assert token not in kept and shared.share.nonce not in kept


@pytest.mark.parametrize("days", [0, -1, 91])
def test_it_lasts_between_a_day_and_ninety(run: ReportRun, days: int) -> None:
    with pytest.raises(Invalid):
        share(run.pk, actor=ACTOR, days=days)


def test_what_is_not_done_is_not_shared(db: None) -> None:
    run = services.run_now(schedule().pk, actor=ACTOR)
    with pytest.raises(Conflict):
        share(run.pk, actor=ACTOR, days=7)


def test_it_goes_with_its_schedule(run: ReportRun) -> None:
    path = share(run.pk, actor=ACTOR, days=7).path
    services.delete_schedule(run.schedule_id, actor=ACTOR)
    assert Client().get(path).status_code == 404 and not ReportShare.objects.exists()
