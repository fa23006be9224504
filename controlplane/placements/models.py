"""Rules that spread a hot prefix over more workers than its load alone would (S3.6)."""

from __future__ import annotations

from datetime import datetime

from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import Q

from controlplane.fleet.models import WorkerPool
from controlplane.namespaces.models import CacheNamespace

HOMES_MIN, HOMES_MAX = 2, 64
"""Every prefix has one home; beyond the upper end a pool is better enlarged."""
PREFIX_PATTERN = r"^[0-9a-f]{16}$"


class PlacementRule(models.Model):
    """Until `until` the prefix has at least `homes` homes in the pool. A rule that ended stays as history."""

    class Outcome(models.TextChoices):
        REVERTED = "reverted", "Reverted"
        EXPIRED = "expired", "Ended by its time"

    namespace = models.ForeignKey(CacheNamespace, on_delete=models.CASCADE, related_name="placements")
    pool = models.ForeignKey(WorkerPool, on_delete=models.CASCADE, related_name="placements")
    prefix = models.CharField(max_length=16, validators=[RegexValidator(PREFIX_PATTERN, "16 hexadecimal digits.")])
    """Keyed id, as telemetry tells it: no block hash."""
    homes = models.PositiveSmallIntegerField(validators=[MinValueValidator(HOMES_MIN), MaxValueValidator(HOMES_MAX)])
    until = models.DateTimeField()
    reason = models.CharField(max_length=500, blank=True)
    created_by = models.CharField(max_length=200)
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    ended_by = models.CharField(max_length=200, blank=True)
    outcome = models.CharField(max_length=10, choices=Outcome, blank=True)
    """How it ended; "" = in force."""
    revision = models.PositiveIntegerField(default=1)

    class Meta:
        ordering = ("-id",)
        constraints = [
            models.UniqueConstraint(
                fields=("namespace", "pool", "prefix"), condition=Q(ended_at=None), name="placement_one_in_force"
            ),
            models.CheckConstraint(
                condition=Q(homes__gte=HOMES_MIN, homes__lte=HOMES_MAX), name="placement_homes_in_bounds"
            ),
            models.CheckConstraint(
                condition=Q(ended_at=None, outcome="") | (Q(ended_at__isnull=False) & ~Q(outcome="")),
                name="placement_ended_has_outcome",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.namespace.namespace_id} {self.prefix} on {self.homes}"

    def in_force(self, now: datetime) -> bool:
        """Routers end it by their own clocks, before a tick writes it down."""
        return self.ended_at is None and now < self.until
