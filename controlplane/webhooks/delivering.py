"""From events to deliveries, and each delivery to its end: taken by its receiver, or a dead letter."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from controlplane import outbox
from controlplane.audit.services import lock_chain, record
from controlplane.errors import ControlError, NotFound
from controlplane.webhooks.events import Event, matches, read_new
from controlplane.webhooks.formats import body_of
from controlplane.webhooks.models import Delivery, Subscription
from controlplane.webhooks.sending import TIMEOUT_S, Outcome, send
from controlplane.webhooks.services import locked, unsealed

LEASE = timedelta(seconds=2 * TIMEOUT_S + 60)
"""An attempt whose process died is made again after this."""
DUE_MAX = 200
"""Deliveries that one tick starts."""
KEPT_FOR = timedelta(days=30)
TEST_EVENT = "test"


def collect(now: datetime | None = None) -> int:
    """A delivery for each fresh event and each receiver that wants it. How many events there were."""
    now = now or timezone.now()
    with transaction.atomic():
        lock_chain()  # one collector at a time
        events = read_new(now)
        receivers = list(Subscription.objects.filter(enabled=True)) if events else []
        rows = [_pending(row, event, now) for row in receivers for event in events if _wants(row, event)]
        Delivery.objects.bulk_create(rows, ignore_conflicts=True)
    return len(events)


def tell(slug: str, event: Event, *, now: datetime) -> bool:
    """One event for one receiver, whatever it subscribed to; in the caller's transaction. False = it is off or gone."""
    row = Subscription.objects.filter(slug=slug, enabled=True).first()
    if row is not None:
        Delivery.objects.bulk_create([_pending(row, event, now)], ignore_conflicts=True)
    return row is not None


def due(now: datetime | None = None) -> list[int]:
    """Ids of deliveries whose next attempt is due."""
    return outbox.due(Delivery.objects.all(), at=now or timezone.now(), limit=DUE_MAX)


def attempt(delivery_id: int) -> Delivery | None:
    """One attempt; None when it is not due, or another process has it. Whatever happens is in the row."""
    now = timezone.now()
    row = outbox.claim(Delivery.objects.select_related("subscription"), delivery_id, at=now, lease=LEASE)
    if row is None:
        return None
    outcome = Outcome(None, outbox.NEVER_ENDED) if outbox.is_used_up(row) else _sent(row, now)
    _settle(row, outcome)
    return row


def redeliver(delivery_id: int, *, actor: str, request_id: str = "") -> Delivery:
    """A dead letter, or a delivered one, gets a fresh round of attempts. Raises NotFound or Conflict."""
    with transaction.atomic():
        row = Delivery.objects.select_for_update().select_related("subscription").filter(pk=delivery_id).first()
        if row is None:
            raise NotFound("There is no such delivery.")
        before = outbox.renew(row, at=timezone.now())
        record(
            actor=actor, action="webhook.redeliver", object_type="webhook", object_id=row.subscription.slug,
            before={"delivery": row.pk, "state": before}, after={"delivery": row.pk, "state": str(row.state)},
            affects_routing=False, request_id=request_id,
        )  # fmt: skip
    return row


def send_test(slug: str, *, actor: str, request_id: str = "") -> Delivery:
    """One attempt with a test event, at once; the answer is in the row. A failed one is not repeated."""
    now = timezone.now()
    event = Event(
        key=f"test:{request_id or now.timestamp()}", event=TEST_EVENT, at=now.isoformat().replace("+00:00", "Z"),
        subject=slug, severity="info", summary="This is a test of the webhook.", details={},
    )  # fmt: skip
    with transaction.atomic():
        subscription = locked(slug)
        row = _pending(subscription, event, now)
        row.attempts, row.next_attempt_at = 1, now + LEASE
        row.save()
        record(
            actor=actor, action="webhook.test", object_type="webhook", object_id=slug, before=None,
            after={"delivery": row.pk}, affects_routing=False, request_id=request_id,
        )  # fmt: skip
    _settle(row, _sent(row, now), attempts_max=1)
    return row


def forget_old(now: datetime | None = None) -> int:
    """Deletes deliveries past their retention, dead letters too. How many."""
    return Delivery.objects.filter(created_at__lt=(now or timezone.now()) - KEPT_FOR).delete()[0]


def _wants(row: Subscription, event: Event) -> bool:
    return matches(event.event, row.events) and datetime.fromisoformat(event.at) >= row.created_at


def _pending(row: Subscription, event: Event, now: datetime) -> Delivery:
    return Delivery(
        subscription=row, event_key=event.key[:200], event=event.event[:80], payload=event.as_json(),
        next_attempt_at=now, created_at=now,
    )  # fmt: skip


def _sent(row: Delivery, now: datetime) -> Outcome:
    subscription = row.subscription
    try:
        sealed = unsealed(subscription)
    except ControlError as error:
        return Outcome(None, error.message)
    body = body_of(subscription.format, row.payload, receiver=subscription.slug, external_url=external_url())
    return send(
        sealed.url, body, secret=sealed.secret, event=row.event, delivery=str(row.pk), at=int(now.timestamp()),
        networks=settings.CONFIG.webhook_networks,
    )  # fmt: skip


def _settle(row: Delivery, outcome: Outcome, *, attempts_max: int = outbox.ATTEMPTS_MAX) -> None:
    row.last_status, row.last_error = outcome.status, outcome.error[:300]
    outbox.settle(row, ok=outcome.ok, at=timezone.now(), attempts_max=attempts_max)
    row.save(update_fields=["last_status", "last_error", *outbox.SETTLED_FIELDS])


def external_url() -> str:
    """Where people find this installation; "" where it has no name beyond this machine."""
    origins = settings.CONFIG.csrf_trusted_origins
    return origins[0] if origins else ""
