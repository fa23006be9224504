"""Work that was begun and not ended, and work that was given up."""

from __future__ import annotations

from django.db import models
from django.db.models import Q


class TaskDelivery(models.Model):
    """One task with one argument, from its first delivery to its success, which deletes the row."""

    task = models.CharField(max_length=100)
    subject = models.CharField(max_length=200)
    """Its argument, an id."""
    deliveries = models.PositiveSmallIntegerField(default=0)
    """How often it was begun."""
    error = models.CharField(max_length=200, blank=True)
    """Type and place of the last exception; "" while it runs, or where its process died."""
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()
    dead_at = models.DateTimeField(null=True)
    """When it was given up: a dead letter."""

    class Meta:
        verbose_name_plural = "task deliveries"
        ordering = ("-id",)
        constraints = [models.UniqueConstraint(fields=("task", "subject"), name="task_delivery_once")]
        indexes = [models.Index(fields=("dead_at",), condition=Q(dead_at__isnull=False), name="task_delivery_dead")]

    def __str__(self) -> str:
        return f"{self.task} {self.subject}"
