"""A finished report to its readers: by mail from here, to webhooks by way of their own deliveries."""

from __future__ import annotations

import smtplib
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.core.mail import EmailMultiAlternatives
from django.db import transaction
from django.utils import timezone

from controlplane import outbox
from controlplane.audit.services import record
from controlplane.errors import NotFound
from controlplane.reports import mail
from controlplane.reports.models import Format, ReportDelivery, ReportRun
from controlplane.reports.no_mail import NoMailServer
from controlplane.webhooks import delivering as webhooks
from controlplane.webhooks.events import Event
from controlplane.webhooks.models import Delivery

LEASE = timedelta(seconds=120)
"""An attempt whose process died is made again after this."""
DUE_MAX = 50
ATTACHED = (Format.PDF, Format.HTML)
ATTACHMENT_BYTES_MAX = 8 * 1024 * 1024
"""Mail servers commonly refuse 10 MB; a larger file is left to the link."""
EVENT = "report.ready"


@dataclass(frozen=True, slots=True)
class Told:
    """One reader of a run, whichever way it goes to them."""

    kind: str
    """`email` or `webhook`."""
    id: int
    to: str
    state: str
    attempts: int
    error: str
    next_attempt_at: datetime | None
    finished_at: datetime | None


def begin(run: ReportRun) -> None:
    """A delivery for each recipient, in the transaction that finishes the run."""
    now = timezone.now()
    recipients = run.settings["recipients"]
    rows = [
        ReportDelivery(run=run, to=item["to"], next_attempt_at=now, created_at=now)
        for item in recipients
        if item["kind"] == "email"
    ]
    ReportDelivery.objects.bulk_create(rows, ignore_conflicts=True)
    for item in recipients:
        if item["kind"] == "webhook":
            webhooks.tell(item["to"], event_of(run), now=now)


def due(now: datetime | None = None) -> list[int]:
    return outbox.due(ReportDelivery.objects.all(), at=now or timezone.now(), limit=DUE_MAX)


def attempt(delivery_id: int) -> ReportDelivery | None:
    """One attempt; None when it is not due, or another process has it. Whatever happens is in the row."""
    row = outbox.claim(ReportDelivery.objects.select_related("run"), delivery_id, at=timezone.now(), lease=LEASE)
    if row is None:
        return None
    error = outbox.NEVER_ENDED if outbox.is_used_up(row) else _mailed(row)
    _settle(row, error)
    return row


def redeliver(delivery_id: int, *, actor: str, request_id: str = "") -> ReportDelivery:
    """One that was given up, or delivered, gets a fresh round of attempts. Raises NotFound or Conflict."""
    with transaction.atomic():
        rows = ReportDelivery.objects.select_for_update(of=("self",)).select_related("run__schedule")
        row = rows.filter(pk=delivery_id).first()
        if row is None:
            raise NotFound("There is no such delivery.")
        before = outbox.renew(row, at=timezone.now())
        record(
            actor=actor, action="report.redeliver", object_type="report", object_id=row.run.schedule.slug,
            before={"delivery": row.pk, "state": before}, after={"delivery": row.pk, "state": str(row.state)},
            affects_routing=False, request_id=request_id,
        )  # fmt: skip
    return row


def told_of(run: ReportRun) -> list[Told]:
    """Every delivery of a run. Two queries."""
    mailed = [_told("email", row.to, row) for row in run.deliveries.all()]
    sent = Delivery.objects.select_related("subscription").filter(event=EVENT, event_key=_key(run))
    hooks = [_told("webhook", row.subscription.slug, row) for row in sent]
    wanted = {item["to"] for item in run.settings["recipients"] if item["kind"] == "webhook"}
    absent = wanted - {told.to for told in hooks} if run.state == ReportRun.State.DONE else set()
    gone = "The webhook is switched off or gone."
    return [*mailed, *hooks, *(Told("webhook", 0, slug, outbox.DEAD, 0, gone, None, None) for slug in sorted(absent))]


def told_by_mail(row: ReportDelivery) -> Told:
    return _told("email", row.to, row)


def _told(kind: str, to: str, row: ReportDelivery | Delivery) -> Told:
    return Told(kind, row.pk, to, str(row.state), row.attempts, row.last_error, row.next_attempt_at, row.finished_at)


def event_of(run: ReportRun) -> Event:
    """What webhooks are told: the headline figures and where the report is."""
    at = timezone.now().isoformat().replace("+00:00", "Z")
    figures = run.figures or {}
    return Event(
        key=_key(run), event=EVENT, at=at, subject=run.settings["slug"], severity="info", tenant=run.tenant,
        summary=mail.sentence(figures, url=mail.url_of(run)), starts_at=run.from_at.isoformat(),
        details={
            "kind": "report", "run": run.pk, "url": mail.url_of(run), "from": run.from_at.isoformat(),
            "to": run.to_at.isoformat(), "summary": figures.get("summary", {}),
            "recommendations": [row["title"] for row in figures.get("recommendations", [])],
        },
    )  # fmt: skip


def _key(run: ReportRun) -> str:
    return f"report:{run.pk}"


def _mailed(row: ReportDelivery) -> str:
    """ "" when the mail server took it, else why not, without the server's own words: they may repeat the address."""
    message = EmailMultiAlternatives(
        subject=mail.subject(row.run.figures or {}), body=mail.as_text(row.run), to=[row.to],
        headers={"Auto-Submitted": "auto-generated"},
    )  # fmt: skip
    message.attach_alternative(mail.as_html(row.run), "text/html")
    for file in row.run.files.filter(format__in=ATTACHED, bytes__lte=ATTACHMENT_BYTES_MAX).exclude(content=None):
        kind = "application/pdf" if file.format == Format.PDF else "text/html"
        message.attach(mail.file_name(row.run, file.format), bytes(file.content or b""), kind)
    try:
        message.send()
    except NoMailServer:
        return "There is no mail server: set TIDEMARK_EMAIL_URL."
    except smtplib.SMTPRecipientsRefused:
        return "The mail server refused this address."
    except smtplib.SMTPResponseException as error:
        return f"The mail server answered {error.smtp_code}."
    except (OSError, smtplib.SMTPException) as error:
        return f"The mail server could not be used ({type(error).__name__})."
    return ""


def _settle(row: ReportDelivery, error: str) -> None:
    row.last_error = error[:300]
    outbox.settle(row, ok=not error, at=timezone.now())
    row.save(update_fields=["last_error", *outbox.SETTLED_FIELDS])
