"""Links that show one report without signing in: signed, ending, revocable, and each one in the audit log."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.core import signing
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from controlplane.audit.services import record
from controlplane.errors import Conflict, Invalid, NotFound
from controlplane.reports.models import ReportRun, ReportShare

DAYS_MAX = 90
SHARES_MAX = 50
"""Open at once for one report."""


@dataclass(frozen=True, slots=True)
class Shared:
    share: ReportShare
    path: str
    """Shown to its maker now and never again."""

    def __repr__(self) -> str:
        return f"Shared({self.share.pk})"


def share(run_id: int, *, actor: str, days: int, request_id: str = "") -> Shared:
    """Raises NotFound, Invalid or Conflict."""
    if not 1 <= days <= DAYS_MAX:
        raise Invalid.field("days", f"Between 1 and {DAYS_MAX} days.")
    now = timezone.now()
    with transaction.atomic():
        run = _locked_run(run_id)
        if run.state != ReportRun.State.DONE:
            raise Conflict("It is not done yet.")
        if run.shares.filter(revoked_at=None, expires_at__gt=now).count() >= SHARES_MAX:
            raise Conflict(f"At most {SHARES_MAX} open links of one report.")
        row = ReportShare.objects.create(
            run=run,
            nonce=secrets.token_hex(16),
            created_by=actor,
            created_at=now,
            expires_at=now + timedelta(days=days),
        )
        _record(row, run, actor=actor, verb="share", request_id=request_id)
    return Shared(row, f"/reports/shared/{_signer().sign(row.nonce)}/")


def revoke_share(share_id: int, *, actor: str, request_id: str = "") -> ReportShare:
    """Raises NotFound or Conflict."""
    with transaction.atomic():
        found = ReportShare.objects.select_for_update(of=("self",)).select_related("run__schedule")
        row = found.filter(pk=share_id).first()
        if row is None:
            raise NotFound("There is no such link.")
        if row.revoked_at is not None:
            raise Conflict("It is revoked already.")
        row.revoked_at = timezone.now()
        row.save(update_fields=["revoked_at"])
        _record(row, row.run, actor=actor, verb="unshare", request_id=request_id)
    return row


def open_shared(token: str, *, now: datetime | None = None) -> ReportRun:
    """The run that a link shows; the visit is counted. Raises NotFound whatever is wrong with the link."""
    now = now or timezone.now()
    try:
        nonce = _signer().unsign(token)
    except signing.BadSignature:
        raise NotFound("This link shows nothing.") from None
    row = ReportShare.objects.select_related("run__schedule").filter(nonce=nonce).first()
    if row is None or not row.is_open(now):
        raise NotFound("This link shows nothing.")
    ReportShare.objects.filter(pk=row.pk).update(opened=F("opened") + 1, last_opened_at=now)
    return row.run


def _locked_run(run_id: int) -> ReportRun:
    rows = ReportRun.objects.select_for_update(of=("self",)).select_related("schedule")
    run = rows.filter(pk=run_id).first()
    if run is None:
        raise NotFound("There is no such report.")
    return run


def _signer() -> signing.Signer:
    return signing.Signer(key=settings.FLEET_KEY.subkey("reports-share/v1").hex(), salt="reports.share", sep="~")


def _record(row: ReportShare, run: ReportRun, *, actor: str, verb: str, request_id: str) -> None:
    record(
        actor=actor, action=f"report.{verb}", object_type="report", object_id=run.schedule.slug, before=None,
        after={"run": run.pk, "share": row.pk, "expires_at": row.expires_at.isoformat()}, affects_routing=False,
        request_id=request_id,
    )  # fmt: skip
