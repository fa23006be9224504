"""Calls that were sent with an Idempotency-Key: each takes effect once, however often it is sent."""

from __future__ import annotations

from django.db import models


class IdempotentCall(models.Model):
    """One key of one caller. It is in flight until its change commits, together with `is_done` and the answer."""

    caller = models.CharField(max_length=64)
    key_hash = models.CharField(max_length=64)
    """Keyed hash of the caller's key; the key itself is not kept, since the answer is encrypted with it."""
    request_hash = models.CharField(max_length=64)
    """Of method, address and body: the same key with another call is refused."""
    attempt = models.PositiveIntegerField(default=1)
    """Raised when an attempt whose lease ran out is taken over; only the newest attempt can commit."""
    lease_until = models.DateTimeField()
    is_done = models.BooleanField(default=False)
    status = models.PositiveSmallIntegerField(default=0)
    answer = models.TextField(blank=True)
    """Body and headers, encrypted with a key made from the fleet key and the caller's key: it may hold a secret."""
    created_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=("caller", "key_hash"), name="idempotent_call_once")]
        indexes = [models.Index(fields=("created_at",), name="idempotent_call_age")]

    def __str__(self) -> str:
        return f"call of {self.caller}, attempt {self.attempt}"
