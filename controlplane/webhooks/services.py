"""Subscriptions: made, changed, removed. Each is one transaction with one audit entry, without the secret parts."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cryptography.fernet import Fernet
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from controlplane.audit.services import record
from controlplane.errors import Conflict, Invalid, NotFound
from controlplane.fleet.addresses import AddressRefused
from controlplane.saving import expect_revision, save_checked
from controlplane.webhooks.events import PATTERNS
from controlplane.webhooks.models import Subscription
from controlplane.webhooks.sending import checked_url

SUBSCRIPTIONS_MAX = 100
"""Every event is compared with each of them."""


@dataclass(frozen=True, slots=True)
class Sealed:
    url: str
    secret: str

    def __repr__(self) -> str:
        return "Sealed(…)"


@dataclass(frozen=True, slots=True)
class Made:
    subscription: Subscription
    secret: str
    """Shown to its owner now and never again."""

    def __repr__(self) -> str:
        return f"Made({self.subscription})"


def create_subscription(
    *,
    actor: str,
    slug: str,
    url: str,
    events: Sequence[str],
    format: str = Subscription.Format.TIDEMARK,
    enabled: bool = True,
    secret: str = "",
    request_id: str = "",
) -> Made:
    """`secret`: of a webhook that moves from another installation; "" = a fresh one. Raises Invalid, or Conflict."""
    address, origin = _checked(url)
    with transaction.atomic():
        if Subscription.objects.count() >= SUBSCRIPTIONS_MAX:
            raise Conflict(f"At most {SUBSCRIPTIONS_MAX} webhooks.")
        secret = secret or f"whsec_{secrets.token_urlsafe(32)}"
        row = Subscription(
            slug=slug, origin=origin, sealed=_seal(Sealed(address, secret)), format=format,
            events=_checked_events(events), enabled=enabled, created_at=timezone.now(),
        )  # fmt: skip
        save_checked(row)
        _record(row, actor=actor, verb="create", before=None, request_id=request_id)
    return Made(row, secret)


def update_subscription(
    slug: str, *, actor: str, if_revision: int | None = None, request_id: str = "", **changes: Any
) -> Subscription:
    """Any of url, events, format, enabled. The secret stays; to get another, make another webhook."""
    checked = _checked(changes.pop("url")) if "url" in changes else None
    with transaction.atomic():
        row = locked(slug, if_revision)
        before = facts(row)
        for name, value in changes.items():
            setattr(row, name, _checked_events(value) if name == "events" else value)
        if checked is not None:
            row.origin, row.sealed = checked[1], _seal(Sealed(checked[0], unsealed(row).secret))
        row.revision += 1
        save_checked(row)
        _record(row, actor=actor, verb="update", before=before, request_id=request_id)
    return row


def delete_subscription(slug: str, *, actor: str, if_revision: int | None = None, request_id: str = "") -> None:
    """With its deliveries."""
    with transaction.atomic():
        row = locked(slug, if_revision)
        before = facts(row)
        row.delete()
        record(
            actor=actor, action="webhook.delete", object_type="webhook", object_id=slug, before=before, after=None,
            affects_routing=False, request_id=request_id,
        )  # fmt: skip


def locked(slug: str, if_revision: int | None = None) -> Subscription:
    row = Subscription.objects.select_for_update().filter(slug=slug).first()
    if row is None:
        raise NotFound(f"There is no webhook {slug!r}.")
    expect_revision(row, if_revision)
    return row


def unsealed(row: Subscription) -> Sealed:
    """Raises Conflict where the fleet key is another one than at its creation."""
    try:
        return Sealed(**json.loads(_cipher().decrypt(row.sealed.encode())))
    except Exception as error:  # the cipher's own, or JSON's: either way it cannot be read
        raise Conflict("Its address was sealed with another fleet key: make the webhook anew.") from error


def facts(row: Subscription) -> dict[str, object]:
    return {
        "webhook": row.slug,
        "origin": row.origin,
        "format": str(row.format),
        "events": list(row.events),
        "enabled": row.enabled,
        "revision": row.revision,
    }


def _checked(url: str) -> tuple[str, str]:
    try:
        return checked_url(url, networks=settings.CONFIG.webhook_networks)
    except AddressRefused as error:
        raise Invalid.field("url", str(error)) from None


def _checked_events(events: Sequence[str]) -> list[str]:
    unknown = [name for name in events if name not in PATTERNS]
    if unknown or not events:
        raise Invalid.field("events", f"Name at least one of: {', '.join(PATTERNS)}.")
    return sorted(set(events))


def _seal(content: Sealed) -> str:
    text = json.dumps({"url": content.url, "secret": content.secret})
    return _cipher().encrypt(text.encode()).decode()


def _cipher() -> Fernet:
    return Fernet(base64.urlsafe_b64encode(settings.FLEET_KEY.subkey("webhooks/v1")))


def _record(row: Subscription, *, actor: str, verb: str, before: dict[str, object] | None, request_id: str) -> None:
    record(
        actor=actor, action=f"webhook.{verb}", object_type="webhook", object_id=row.slug, before=before,
        after=facts(row), affects_routing=False, request_id=request_id,
    )  # fmt: skip
