"""Changes that two persons must agree on: one proposes, another approves, both are recorded."""

from __future__ import annotations

from datetime import datetime

from django.db import models
from django.db.models import F, Q


class ChangeRequest(models.Model):
    """A proposed change. It takes effect in the transaction of its approval, or never."""

    class State(models.TextChoices):
        PENDING = "pending", "Waits for another person"
        APPLIED = "applied", "Approved and applied"
        REJECTED = "rejected", "Rejected"
        WITHDRAWN = "withdrawn", "Withdrawn by its proposer"
        EXPIRED = "expired", "Nobody approved it in time"

    kind = models.CharField(max_length=60)
    """Which registered change it is: a key of `registry`."""
    subject = models.CharField(max_length=200)
    """Id of the object it changes."""
    tenant = models.CharField(max_length=48, blank=True)
    """Slug of the tenant that the object belongs to; "" = of the whole fleet."""
    change = models.JSONField(default=dict)
    """What the kind's `apply` is given; no secrets."""
    reason = models.CharField(max_length=500)
    state = models.CharField(max_length=10, choices=State, default=State.PENDING)
    proposed_by = models.CharField(max_length=200)
    proposed_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    decided_by = models.CharField(max_length=200, blank=True)
    decided_at = models.DateTimeField(null=True, blank=True)
    decision = models.CharField(max_length=500, blank=True)
    """What the second person said."""
    revision = models.PositiveIntegerField(default=1)

    class Meta:
        ordering = ("-id",)
        constraints = [
            models.UniqueConstraint(
                fields=("kind", "subject"), condition=Q(state="pending"), name="change_request_one_pending"
            ),
            models.CheckConstraint(
                condition=~Q(state="applied") | (~Q(decided_by="") & ~Q(decided_by=F("proposed_by"))),
                name="change_request_two_persons",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.subject}"

    def is_open(self, now: datetime) -> bool:
        return self.state == self.State.PENDING and now < self.expires_at
