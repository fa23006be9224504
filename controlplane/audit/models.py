"""The audit log: one row for each change, chained by hashes, written in the change's own transaction."""

from __future__ import annotations

from django.db import models


class AuditEntry(models.Model):
    """Who did what to which object. `hash` = SHA-256(previous_hash ‖ canonical JSON of the entry) (S24)."""

    at = models.DateTimeField()
    actor = models.CharField(max_length=200)
    """`user:<name>`, `token:<id>` or `system:<role>`."""
    action = models.CharField(max_length=80)
    """`<object type>.<verb>`: `namespace.revoke`."""
    object_type = models.CharField(max_length=40)
    object_id = models.CharField(max_length=200)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    reason = models.CharField(max_length=500, blank=True)
    request_id = models.CharField(max_length=64, blank=True)
    affects_routing = models.BooleanField(default=False)
    """True when routers must learn of it: the published snapshot then lags until it covers this row."""
    previous_hash = models.CharField(max_length=64)
    hash = models.CharField(max_length=64, unique=True)

    class Meta:
        verbose_name_plural = "audit entries"
        ordering = ("-id",)
        indexes = [
            models.Index(fields=("object_type", "object_id", "-id"), name="audit_object"),
            models.Index(fields=("affects_routing", "id"), name="audit_routing"),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.object_id} by {self.actor}"
