"""Questions to the fleet simulator over recorded traffic, and what became of them."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q


class WhatIf(models.Model):
    """One question: what recorded traffic would have met, had the fleet been another."""

    class State(models.TextChoices):
        WAITING = "waiting", "Waits"
        RUNNING = "running", "Is simulated"
        DONE = "done", "Done"
        FAILED = "failed", "Failed"
        CANCELLED = "cancelled", "Cancelled"

    asked_by = models.CharField(max_length=200)
    """An actor's name, as in the audit log."""
    pool = models.CharField(max_length=48)
    tenant = models.CharField(max_length=48, blank=True)
    """Whose traffic is replayed and who may see it; "" = the whole pool's, for the fleet's people. Slugs are texts
    here: history outlives what it speaks of."""
    namespace = models.CharField(max_length=100, blank=True)
    """`acme/support`; "" = all of the tenant's."""
    from_at = models.DateTimeField()
    to_at = models.DateTimeField()
    question = models.JSONField()
    """As the simulator is asked: `simulator/fleet/question.py`. Frozen with the facts of the moment it was asked."""
    gpu_currency = models.CharField(max_length=3, default="EUR")
    """Of the price in the question, where it has one."""
    state = models.CharField(max_length=10, choices=State, default=State.WAITING)
    simulated = models.PositiveIntegerField(default=0)
    to_simulate = models.PositiveIntegerField(default=0)
    """Requests, of all scenarios and seeds; 0 = not known yet."""
    doing = models.CharField(max_length=120, blank=True)
    """What is under way, in words."""
    requests = models.PositiveIntegerField(null=True, blank=True)
    """Recorded ones that are replayed; null = not read yet."""
    answer = models.JSONField(null=True, blank=True)
    error = models.CharField(max_length=300, blank=True)
    lease_until = models.DateTimeField(null=True, blank=True)
    """While it is simulated: when its process counts as dead."""
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-id",)
        constraints = [
            models.CheckConstraint(condition=Q(from_at__lt=F("to_at")), name="what_if_has_a_span"),
            models.CheckConstraint(
                condition=Q(state="running") ^ Q(lease_until=None), name="what_if_running_has_a_lease"
            ),
            models.CheckConstraint(
                condition=Q(state="done") ^ Q(answer__isnull=True), name="what_if_done_has_an_answer"
            ),
            models.CheckConstraint(condition=Q(namespace="") | ~Q(tenant=""), name="what_if_namespace_has_its_tenant"),
        ]
        indexes = [
            models.Index(fields=("id",), condition=Q(state__in=("waiting", "running")), name="what_if_open"),
            models.Index(fields=("tenant", "-id"), name="what_if_tenant"),
        ]

    def __str__(self) -> str:
        return f"what-if {self.pk}"

    @property
    def under_way(self) -> bool:
        return self.state in (self.State.WAITING, self.State.RUNNING)
