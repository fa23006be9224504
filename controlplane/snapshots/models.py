"""Published snapshots and which router serves which of them."""

from __future__ import annotations

from django.db import models


class PublishedSnapshot(models.Model):
    version = models.PositiveBigIntegerField(unique=True)
    epoch = models.PositiveBigIntegerField()
    """Raised by every revocation."""
    created_at = models.DateTimeField()
    digest = models.CharField(max_length=64)
    document = models.TextField()
    """The encoded `router.contract.snapshot.SignedSnapshot`, as served."""
    through_audit_id = models.BigIntegerField()
    """The last audit entry whose change is in it."""

    class Meta:
        ordering = ("-version",)

    def __str__(self) -> str:
        return f"v{self.version}"


class RouterStatus(models.Model):
    """The last sign of life of each router. `seen_at` older than its lease means unknown, not up to date."""

    router_id = models.CharField(max_length=128, unique=True)
    boot = models.CharField(max_length=64)
    snapshot_version = models.PositiveBigIntegerField(default=0)
    epoch = models.PositiveBigIntegerField(default=0)
    inflight = models.PositiveIntegerField(default=0)
    admin_url = models.CharField(max_length=300, blank=True)
    last_error = models.CharField(max_length=500, blank=True)
    digest = models.CharField(max_length=64, blank=True)
    """Of the snapshot it serves; empty while it does not say."""
    started_at = models.DateTimeField(null=True)
    seen_at = models.DateTimeField()
    version_at = models.DateTimeField(null=True)
    """When it first reported snapshot_version."""

    class Meta:
        verbose_name_plural = "router statuses"
        ordering = ("router_id",)

    def __str__(self) -> str:
        return self.router_id
