"""What was taken away for good, and which router has said that it grants it no more."""

from __future__ import annotations

from django.db import models


class FleetEpoch(models.Model):
    """One row: the epoch of the installation. Only `services` moves it, under the audit chain's lock."""

    ONLY_ID = 1

    value = models.PositiveBigIntegerField()

    class Meta:
        verbose_name_plural = "fleet epoch"

    def __str__(self) -> str:
        return f"epoch {self.value}"


class Revocation(models.Model):
    """One revocation, made in the transaction of the change itself. It stays unreachable from then on; the cached
    blocks stay resident on the workers until they are evicted."""

    class Kind(models.TextChoices):
        KEY = "key", "API key"
        NAMESPACE = "namespace", "Namespace"
        TENANT = "tenant", "Tenant"
        MODEL = "model", "Model revision"

    epoch = models.PositiveBigIntegerField(unique=True)
    kind = models.CharField(max_length=10, choices=Kind)
    subject = models.CharField(max_length=260)
    """Key id, `acme/support`, `acme` or `<pool>:<model name>`."""
    tenant = models.CharField(max_length=48, blank=True)
    """Slug of the tenant it concerns; empty for a model."""
    retired = models.PositiveIntegerField(default=0)
    """The generation, of the namespace or the model, that ended with it; 0 = none did."""
    denies_when_stale = models.BooleanField(default=False)
    """Every namespace concerned denies when its policy is stale: a router that is cut off stops by itself."""
    reason = models.CharField(max_length=500, blank=True)
    actor = models.CharField(max_length=200)
    audit_id = models.BigIntegerField()
    created_at = models.DateTimeField()
    announced_at = models.DateTimeField(null=True)
    """When the routers known then were told, ahead of the snapshot; null = not yet."""

    class Meta:
        ordering = ("-epoch",)
        constraints = [
            models.CheckConstraint(
                condition=models.Q(kind__in=["key", "namespace", "tenant", "model"]), name="revocation_kind_known"
            ),
        ]
        indexes = [
            models.Index(fields=["epoch"], condition=models.Q(announced_at=None), name="revocation_unannounced"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.subject}"


class RouterAck(models.Model):
    """What one router, known when a revocation was made, said to it."""

    class Way(models.TextChoices):
        DIRECT = "direct", "In answer to the revocation itself"
        POLL = "poll", "With a later sign of life"

    revocation = models.ForeignKey(Revocation, on_delete=models.CASCADE, related_name="acks")
    router_id = models.CharField(max_length=128)
    seen_at = models.DateTimeField()
    """Its last sign of life before the revocation."""
    acked_at = models.DateTimeField(null=True)
    """Null = it has not said so."""
    way = models.CharField(max_length=6, choices=Way, blank=True)

    class Meta:
        ordering = ("router_id",)
        constraints = [
            models.UniqueConstraint(fields=("revocation", "router_id"), name="router_ack_once"),
        ]
        indexes = [
            models.Index(fields=["router_id"], condition=models.Q(acked_at=None), name="router_ack_awaited"),
        ]

    def __str__(self) -> str:
        return f"{self.router_id}: {self.revocation_id}"
