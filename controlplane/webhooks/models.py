"""Who is told of what happens, and every attempt to tell them."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from controlplane.tenants.models import slug_validator


class Subscription(models.Model):
    """A receiver of events, outside of this installation."""

    class Format(models.TextChoices):
        TIDEMARK = "tidemark", "Tidemark JSON"
        ALERTMANAGER = "alertmanager", "Alertmanager webhook, version 4"
        SLACK = "slack", "Slack message"

    slug = models.CharField(max_length=48, unique=True, validators=[slug_validator])
    origin = models.CharField(max_length=300, editable=False)
    """Scheme, host and port of its address. The rest may be a secret, and is in `sealed`."""
    sealed = models.TextField(editable=False)
    """The whole address and the key of its signatures, encrypted by the fleet key."""
    format = models.CharField(max_length=12, choices=Format, default=Format.TIDEMARK)
    events = models.JSONField(default=list)
    """Patterns of `events.PATTERNS`."""
    enabled = models.BooleanField(default=True)
    revision = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField()
    """It hears of what happens from then on."""
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("slug",)

    def __str__(self) -> str:
        return self.slug


class Delivery(models.Model):
    """One event for one receiver: attempted until it is taken, or given up and kept as a dead letter."""

    class State(models.TextChoices):
        PENDING = "pending", "Waits for its next attempt"
        DELIVERED = "delivered", "Delivered"
        DEAD = "dead", "Given up"

    subscription = models.ForeignKey(Subscription, on_delete=models.CASCADE, related_name="deliveries")
    event_key = models.CharField(max_length=200)
    """Of the event itself: what is found twice is told once."""
    event = models.CharField(max_length=80)
    payload = models.JSONField()
    """The event, whatever the receiver's format."""
    state = models.CharField(max_length=10, choices=State, default=State.PENDING)
    attempts = models.PositiveSmallIntegerField(default=0)
    next_attempt_at = models.DateTimeField(null=True)
    """Null = there is none."""
    last_status = models.PositiveSmallIntegerField(null=True)
    """HTTP status of the last answer; null = there was none."""
    last_error = models.CharField(max_length=300, blank=True)
    created_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name_plural = "deliveries"
        ordering = ("-id",)
        constraints = [
            models.UniqueConstraint(fields=("subscription", "event_key"), name="delivery_once"),
            models.CheckConstraint(
                condition=Q(state="pending") ^ Q(next_attempt_at=None), name="delivery_pending_has_a_next_attempt"
            ),
        ]
        indexes = [
            models.Index(fields=("next_attempt_at",), condition=Q(state="pending"), name="delivery_due"),
            models.Index(fields=("created_at",), name="delivery_age"),
        ]

    def __str__(self) -> str:
        return f"{self.event} to {self.subscription_id}"


class EventCursor(models.Model):
    """How far a source of events was read."""

    source = models.CharField(max_length=40, unique=True)
    position = models.BigIntegerField(default=0)
    """Id of the last row that was seen."""
    read_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.source} at {self.position}"
