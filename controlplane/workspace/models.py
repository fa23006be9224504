"""What people add to the dashboard: views that they come back to, and notes on a range of time."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class SavedView(models.Model):
    """An address of the dashboard under a name of its owner's; nobody else sees it."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="saved_views")
    name = models.CharField(max_length=80)
    path = models.CharField(max_length=300)
    """Of this site: begins with one `/`."""
    query = models.CharField(max_length=1000, blank=True)
    is_default = models.BooleanField(default=False)
    """Shown in place of the bare `/`."""
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name",)
        constraints = [
            models.UniqueConstraint(fields=("user", "name"), name="saved_view_name_unique"),
            models.UniqueConstraint(
                fields=("user",), condition=models.Q(is_default=True), name="saved_view_one_default"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def address(self) -> str:
        return f"{self.path}?{self.query}" if self.query else self.path


class RangeNote(models.Model):
    """Words on a range of time, shown as a band on every time chart."""

    begins_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    text = models.CharField(max_length=280)
    tenant = models.CharField(max_length=48, blank=True)
    """Whose charts it stands on; empty = the fleet's, which members of tenants do not see."""
    author = models.CharField(max_length=200)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-begins_at",)
        indexes = [models.Index(fields=("ends_at", "begins_at"), name="range_note_span")]
        constraints = [
            models.CheckConstraint(condition=models.Q(ends_at__gt=models.F("begins_at")), name="range_note_ends_later")
        ]

    def __str__(self) -> str:
        return self.text
