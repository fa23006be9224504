"""Isolation violations: evidence that a namespace received what only another could have cached (S8)."""

from __future__ import annotations

from django.db import models


class IsolationViolation(models.Model):
    at = models.DateTimeField(db_index=True)
    request_id = models.CharField(max_length=64, unique=True)
    tenant = models.CharField(max_length=48)
    namespace = models.CharField(max_length=100)
    pool = models.CharField(max_length=48)
    worker = models.CharField(max_length=100)
    model = models.CharField(max_length=200)
    prompt_tokens = models.PositiveBigIntegerField()
    cached_tokens = models.PositiveBigIntegerField()
    bound_tokens = models.PositiveBigIntegerField()
    """The most cached tokens that the namespace's own history on the worker allows."""
    acknowledged_at = models.DateTimeField(null=True, blank=True)
    acknowledged_by = models.CharField(max_length=200, blank=True)
    acknowledgement = models.CharField(max_length=500, blank=True)

    class Meta:
        ordering = ("-at",)

    def __str__(self) -> str:
        return f"{self.namespace} on {self.worker}: {self.cached_tokens} > {self.bound_tokens}"
