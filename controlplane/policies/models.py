"""Watermark policies: at which KV use a worker stops, and starts again, to take new prefixes (S0.4)."""

from __future__ import annotations

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Q

from controlplane.fleet.models import WorkerPool
from controlplane.namespaces.models import CacheNamespace


class WatermarkPolicy(models.Model):
    """The narrowest scope wins: namespace, then pool, then global."""

    class Scope(models.TextChoices):
        GLOBAL = "global", "Global"
        POOL = "pool", "Pool"
        NAMESPACE = "namespace", "Namespace"

    scope = models.CharField(max_length=10, choices=Scope)
    pool = models.OneToOneField(
        WorkerPool, on_delete=models.CASCADE, null=True, blank=True, related_name="watermark_policy"
    )
    namespace = models.OneToOneField(
        CacheNamespace, on_delete=models.CASCADE, null=True, blank=True, related_name="watermark_policy"
    )
    low = models.FloatField(default=0.65, validators=[MinValueValidator(0.01), MaxValueValidator(1)])
    high = models.FloatField(default=0.85, validators=[MinValueValidator(0.01), MaxValueValidator(1)])
    dwell_s = models.FloatField(default=0, validators=[MinValueValidator(0), MaxValueValidator(3600)])
    """Least time between two changes of one worker."""
    revision = models.PositiveIntegerField(default=1)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        verbose_name_plural = "watermark policies"
        ordering = ("scope", "id")
        constraints = [
            models.CheckConstraint(
                condition=Q(low__gt=0) & Q(low__lt=F("high")) & Q(high__lte=1), name="watermark_low_below_high"
            ),
            models.CheckConstraint(condition=Q(dwell_s__gte=0), name="watermark_dwell_not_negative"),
            models.CheckConstraint(
                condition=Q(scope="global", pool=None, namespace=None)
                | Q(scope="pool", pool__isnull=False, namespace=None)
                | Q(scope="namespace", pool=None, namespace__isnull=False),
                name="watermark_scope_fits",
            ),
            models.UniqueConstraint(fields=("scope",), condition=Q(scope="global"), name="watermark_one_global"),
        ]

    def __str__(self) -> str:
        return self.scope_id

    @property
    def scope_id(self) -> str:
        """`global`, `pool:<slug>` or `namespace:<tenant>/<slug>`."""
        if self.pool is not None:
            return f"pool:{self.pool.slug}"
        if self.namespace is not None:
            return f"namespace:{self.namespace.namespace_id}"
        return "global"
