"""Policies in force and every revision they went through.

A watermark says at which KV use a worker stops, and starts again, to take new prefixes (S0.4). A routing policy
replaces values of a pool's or namespace's own settings. The row of a policy holds what is in force; `PolicyRevision`
holds what ever was, with author and reason, and never changes.
"""

from __future__ import annotations

from typing import Any, Never

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
    """Number of the PolicyRevision whose values these are."""
    expires_at = models.DateTimeField(null=True, blank=True)
    """When the values end by themselves; null = they stay."""
    standing = models.PositiveIntegerField(null=True, blank=True)
    """Of values that end: the revision that holds afterwards; null = the wider scope's policy."""
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
        return _scope_id(self.pool, self.namespace)


class RoutingPolicy(models.Model):
    """Values that replace a pool's settings (rule, virtual nodes, red line) or a namespace's (priority, objective)."""

    class Scope(models.TextChoices):
        POOL = "pool", "Pool"
        NAMESPACE = "namespace", "Namespace"

    scope = models.CharField(max_length=10, choices=Scope)
    pool = models.OneToOneField(
        WorkerPool, on_delete=models.CASCADE, null=True, blank=True, related_name="routing_policy"
    )
    namespace = models.OneToOneField(
        CacheNamespace, on_delete=models.CASCADE, null=True, blank=True, related_name="routing_policy"
    )
    values = models.JSONField(default=dict)
    """Field of `routing_values.FIELDS` of the scope → value; a field that is not in it stays as the settings say."""
    revision = models.PositiveIntegerField(default=1)
    expires_at = models.DateTimeField(null=True, blank=True)
    standing = models.PositiveIntegerField(null=True, blank=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        verbose_name_plural = "routing policies"
        ordering = ("scope", "id")
        constraints = [
            models.CheckConstraint(
                condition=Q(scope="pool", pool__isnull=False, namespace=None)
                | Q(scope="namespace", pool=None, namespace__isnull=False),
                name="routing_policy_scope_fits",
            ),
        ]

    def __str__(self) -> str:
        return self.scope_id

    @property
    def scope_id(self) -> str:
        """`pool:<slug>` or `namespace:<tenant>/<slug>`."""
        return _scope_id(self.pool, self.namespace)


class PolicyRevision(models.Model):
    """One set of values that a scope had, or was to get. Written once: neither changed nor deleted."""

    class Kind(models.TextChoices):
        WATERMARK = "watermark", "Watermark"
        ROUTING = "routing", "Routing"

    class Origin(models.TextChoices):
        SET = "set", "Set"
        CLEAR = "clear", "Cleared: the wider scope holds"
        ROLLBACK = "rollback", "Rolled back to an earlier revision"
        EXPIRY = "expiry", "An override ended"
        CANDIDATE = "candidate", "Candidate of a roll-out: not in force by itself"
        ROLLOUT = "rollout", "A roll-out reached all routers"

    kind = models.CharField(max_length=10, choices=Kind)
    scope = models.CharField(max_length=120)
    """As in `scope_id`. Text: the history outlives what it speaks of."""
    tenant = models.CharField(max_length=48, blank=True)
    """Of a namespace's policy; "" = of the fleet."""
    number = models.PositiveIntegerField()
    """Counts up within kind and scope, without gaps."""
    values = models.JSONField(null=True, blank=True)
    """Null = the scope had no policy of its own from here on."""
    origin = models.CharField(max_length=10, choices=Origin, default=Origin.SET)
    repeats = models.PositiveIntegerField(null=True, blank=True)
    """The earlier revision whose values these are."""
    expires_at = models.DateTimeField(null=True, blank=True)
    author = models.CharField(max_length=200)
    reason = models.CharField(max_length=500, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ("-id",)
        constraints = [
            models.UniqueConstraint(fields=("kind", "scope", "number"), name="policy_revision_unique"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.scope} r{self.number}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Raises ValueError for a revision that is stored already."""
        if not self._state.adding:
            raise ValueError(f"{self} is written and cannot change")
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> Never:
        raise ValueError(f"{self} is written and stays")


def _scope_id(pool: WorkerPool | None, namespace: CacheNamespace | None) -> str:
    if pool is not None:
        return f"pool:{pool.slug}"
    return "global" if namespace is None else f"namespace:{namespace.namespace_id}"


class Rollout(models.Model):
    """A candidate revision on its way to all routers in stages. One a kind and scope at a time."""

    class State(models.TextChoices):
        RUNNING = "running", "Under way"
        COMPLETED = "completed", "In force on all routers"
        ROLLED_BACK = "rolled_back", "Rolled back"

    kind = models.CharField(max_length=10, choices=PolicyRevision.Kind)
    scope = models.CharField(max_length=120)
    tenant = models.CharField(max_length=48, blank=True)
    candidate = models.PositiveIntegerField()
    """Number of the revision that is rolled out."""
    values = models.JSONField()
    """Its values."""
    stages = models.JSONField(default=list)
    """Shares of the routers, rising, the last 1."""
    stage = models.PositiveIntegerField(default=0)
    """Index into `stages`."""
    share = models.FloatField(default=0)
    """What the snapshot carries: chosen so that at least one router that is there takes part."""
    stage_s = models.PositiveIntegerField(default=300)
    """Least seconds of each stage."""
    guards = models.JSONField(default=dict, blank=True)
    """Limits of the guard metrics: see `rollouts.guard.Limits`."""
    state = models.CharField(max_length=12, choices=State, default=State.RUNNING)
    verdict = models.JSONField(default=dict, blank=True)
    """The guard's last word: figures of both arms and the sentence."""
    author = models.CharField(max_length=200)
    reason = models.CharField(max_length=500, blank=True)
    started_at = models.DateTimeField()
    stage_at = models.DateTimeField()
    """When the present stage began."""
    ended_at = models.DateTimeField(null=True, blank=True)
    ended_by = models.CharField(max_length=200, blank=True)
    outcome = models.CharField(max_length=500, blank=True)
    """Why it ended, in one sentence."""
    revision = models.PositiveIntegerField(default=1)

    class Meta:
        ordering = ("-id",)
        constraints = [
            models.UniqueConstraint(fields=("kind", "scope"), condition=Q(state="running"), name="rollout_one_running"),
            models.CheckConstraint(condition=Q(share__gte=0) & Q(share__lte=1), name="rollout_share_is_a_share"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.scope} r{self.candidate}"

    @property
    def variant_id(self) -> str:
        """Its id in snapshots and in what routers say of themselves."""
        return f"rollout-{self.pk}"

    @property
    def share_wanted(self) -> float:
        return float(self.stages[self.stage])
