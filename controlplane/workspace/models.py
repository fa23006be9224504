"""What people keep for themselves: views of the dashboard that they come back to."""

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
