"""The audit log: one row for each change, chained by hashes, written in the change's own transaction."""

from __future__ import annotations

from typing import Any, NoReturn

from django.db import models


class AppendOnly(Exception):
    """An audit entry was about to be changed or removed."""


class AuditQuerySet(models.QuerySet["AuditEntry"]):
    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise AppendOnly("Audit entries are only ever appended, by audit.services.record.")

    update = aupdate = delete = adelete = _refuse
    bulk_create = abulk_create = bulk_update = abulk_update = update_or_create = get_or_create = _refuse


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

    objects = AuditQuerySet.as_manager()

    class Meta:
        verbose_name_plural = "audit entries"
        ordering = ("-id",)
        indexes = [
            models.Index(fields=("object_type", "object_id", "-id"), name="audit_object"),
            models.Index(fields=("affects_routing", "id"), name="audit_routing"),
            models.Index(fields=("at",), name="audit_at"),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.object_id} by {self.actor}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            raise AppendOnly("An audit entry is never changed.")
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise AppendOnly("An audit entry is never deleted.")


class AuditHead(models.Model):
    """The signed end of the chain, one row: without it a truncated or rewritten log would look whole."""

    ONLY_ID = 1

    last_id = models.PositiveBigIntegerField(default=0)
    """Ids are given by the chain, without gaps: also the number of entries."""
    last_hash = models.CharField(max_length=64)
    signature = models.CharField(max_length=64)
    """`FleetKey.mac("audit-head/v1", last_id, last_hash)`, hexadecimal."""

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="audit_one_head")]

    def __str__(self) -> str:
        return f"audit head at {self.last_id}"


class AuditVerification(models.Model):
    """One verification of the whole chain, and the signed head that it found."""

    at = models.DateTimeField()
    by = models.CharField(max_length=200)
    entries = models.PositiveBigIntegerField()
    """Found sound, before the first bad one."""
    bad_id = models.PositiveBigIntegerField(null=True)
    """The first entry that is altered, missing or cut off; null = the log is whole."""
    fault = models.CharField(max_length=300, blank=True)
    head_hash = models.CharField(max_length=64, blank=True)
    """Hash of the last entry at that moment: kept elsewhere, it shows a later log that was rewritten before it."""
    seconds = models.FloatField()

    class Meta:
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"{self.entries} entries at {self.at}"
