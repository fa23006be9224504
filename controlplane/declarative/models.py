"""Which objects a file in somebody's repository is the source of."""

from __future__ import annotations

from django.db import models


class ManagedObject(models.Model):
    """An object that `tidemark apply` manages: its settings are changed in the file, not by hand."""

    object_type = models.CharField(max_length=40)
    """As in the audit log: `namespace`, `pool`, `watermark` …"""
    object_id = models.CharField(max_length=200)
    manager = models.CharField(max_length=100)
    """The file's `metadata.managed-by`: where to make the change."""

    class Meta:
        ordering = ("object_type", "object_id")
        constraints = [models.UniqueConstraint(fields=("object_type", "object_id"), name="managed_object_once")]

    def __str__(self) -> str:
        return f"{self.object_type} {self.object_id} by {self.manager}"
