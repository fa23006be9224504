"""Who uses the fleet (tenants) and who operates it (users)."""

from __future__ import annotations

from django.contrib.auth.models import AbstractUser
from django.core.validators import RegexValidator
from django.db import models

slug_validator = RegexValidator(
    r"^[a-z0-9](?:[a-z0-9-]{0,46}[a-z0-9])?$",
    "Use 1–48 lower-case letters, digits and inner hyphens.",
)


class Status(models.TextChoices):
    ACTIVE = "active", "Active"
    SUSPENDED = "suspended", "Suspended"
    REVOKED = "revoked", "Revoked"


class User(AbstractUser):
    """An operator. The role decides what may be changed; a superuser may everything."""

    class Role(models.TextChoices):
        VIEWER = "viewer", "Viewer"
        OPERATOR = "operator", "Operator"
        ADMIN = "admin", "Administrator"

    role = models.CharField(max_length=20, choices=Role, default=Role.VIEWER)
    time_zone = models.CharField(max_length=50, blank=True)
    """IANA name for displayed times; empty = the browser's."""

    @property
    def may_change(self) -> bool:
        """Whether this user may change policies, workers, tenants and namespaces."""
        return self.is_superuser or self.role in (self.Role.OPERATOR, self.Role.ADMIN)


class Tenant(models.Model):
    slug = models.CharField(max_length=48, unique=True, validators=[slug_validator])
    name = models.CharField(max_length=200)
    status = models.CharField(max_length=10, choices=Status, default=Status.ACTIVE)
    revision = models.PositiveIntegerField(default=1)
    """Raised by each change; the ETag of the REST API."""
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("slug",)
        constraints = [
            models.CheckConstraint(condition=models.Q(status__in=Status.values), name="tenant_status_known"),
        ]

    def __str__(self) -> str:
        return self.slug
