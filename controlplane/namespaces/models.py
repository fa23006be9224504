"""Cache namespaces, the unit of KV isolation, and the API keys that lead into them."""

from __future__ import annotations

import secrets

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.utils import timezone

from controlplane.tenants.models import Status, Tenant, slug_validator

PRIORITY_MIN = -4
PRIORITY_MAX = 4


def new_nonce() -> str:
    """A generation nonce: 128 random bits, hexadecimal. With the fleet key it determines the cache salt."""
    return secrets.token_hex(16)


def default_scopes() -> list[str]:
    return ["inference"]


class TrustGroup(models.Model):
    """Namespaces of several tenants that share cached prefixes. Each member is approved by a second person."""

    slug = models.CharField(max_length=48, unique=True, validators=[slug_validator])
    name = models.CharField(max_length=200, blank=True)
    nonce = models.CharField(max_length=32, default=new_nonce, editable=False)
    generation = models.PositiveIntegerField(default=1)
    generation_at = models.DateTimeField(default=timezone.now)
    dissolved_at = models.DateTimeField(null=True, blank=True)
    """From then on its members are private; final."""
    revision = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("slug",)

    def __str__(self) -> str:
        return self.slug


class CacheNamespace(models.Model):
    """Requests share cached prefixes only inside one generation of one namespace, or of the domain it shares."""

    class Isolation(models.TextChoices):
        PRIVATE = "private", "Private"
        PROJECT = "project", "Shared in a project of the tenant"
        TRUST_GROUP = "trust_group", "Shared in a trust group"
        SHARED_PUBLIC = "shared_public", "Private, but for public templates' static text"

    class OnStale(models.TextChoices):
        SERVE = "serve", "Serve from the last known policy"
        DENY = "deny", "Deny until the policy is fresh"

    class UnknownFields(models.TextChoices):
        DROP = "drop", "Drop and count"
        REJECT = "reject", "Reject with 400"
        PASS = "pass", "Pass on"

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="namespaces")
    slug = models.CharField(max_length=48, validators=[slug_validator])
    name = models.CharField(max_length=200, blank=True)
    status = models.CharField(max_length=10, choices=Status, default=Status.ACTIVE)
    generation = models.PositiveIntegerField(default=1)
    generation_nonce = models.CharField(max_length=32, default=new_nonce, editable=False)
    generation_at = models.DateTimeField(default=timezone.now)
    isolation = models.CharField(max_length=20, choices=Isolation, default=Isolation.PRIVATE)
    """Changed by `sharing_services` alone: sharing needs two persons."""
    project = models.CharField(max_length=48, blank=True, validators=[slug_validator])
    """Of isolation `project`: namespaces of one tenant with the same one share."""
    trust_group = models.ForeignKey(
        TrustGroup, on_delete=models.PROTECT, null=True, blank=True, related_name="namespaces"
    )
    on_stale = models.CharField(max_length=10, choices=OnStale, default=OnStale.SERVE)
    unknown_fields = models.CharField(max_length=10, choices=UnknownFields, default=UnknownFields.DROP)
    model_names = models.JSONField(default=list, blank=True)
    """Model names the namespace may use; empty = all."""
    ttft_slo_ms = models.FloatField(null=True, blank=True)
    """Objective for time to first token; null = none."""
    shed_over_slo = models.BooleanField(default=False)
    """Refuse with 429 what would be answered long after the objective."""
    priority = models.SmallIntegerField(
        default=0, validators=[MinValueValidator(PRIORITY_MIN), MaxValueValidator(PRIORITY_MAX)]
    )
    """Each step up weighs waiting by √2 more against what the cache saves."""
    revision = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("tenant__slug", "slug")
        constraints = [
            models.UniqueConstraint(fields=("tenant", "slug"), name="namespace_unique_in_tenant"),
            models.CheckConstraint(condition=models.Q(status__in=Status.values), name="namespace_status_known"),
            models.CheckConstraint(
                condition=models.Q(ttft_slo_ms__isnull=True) | models.Q(ttft_slo_ms__gt=0),
                name="namespace_slo_positive",
            ),
            models.CheckConstraint(
                condition=models.Q(isolation="project") ^ models.Q(project=""), name="namespace_project_if_shared"
            ),
            models.CheckConstraint(
                condition=models.Q(isolation="trust_group") ^ models.Q(trust_group__isnull=True),
                name="namespace_group_if_shared",
            ),
        ]

    def __str__(self) -> str:
        return self.namespace_id

    @property
    def namespace_id(self) -> str:
        """`<tenant>/<slug>`, as in snapshots, metrics and URLs. Reads the tenant: select it along."""
        return f"{self.tenant.slug}/{self.slug}"


class ApiKey(models.Model):
    """A key `tm_<key_id>_<secret>`; only a keyed hash of the secret is kept (S13)."""

    class KeyScope(models.TextChoices):
        INFERENCE = "inference", "Send requests"
        EXPLAIN = "explain", "See how its requests are routed"

    class KeyStatus(models.TextChoices):
        ACTIVE = "active", "Active"
        REVOKED = "revoked", "Revoked"

    namespace = models.ForeignKey(CacheNamespace, on_delete=models.PROTECT, related_name="keys")
    key_id = models.CharField(max_length=12, unique=True, editable=False)
    secret_hash = models.CharField(max_length=64, editable=False)
    name = models.CharField(max_length=200)
    status = models.CharField(max_length=10, choices=KeyStatus, default=KeyStatus.ACTIVE)
    expires_at = models.DateTimeField(null=True, blank=True)
    scopes = models.JSONField(default=default_scopes)
    """Of KeyScope, `inference` among them."""
    created_by = models.CharField(max_length=200)
    created_at = models.DateTimeField(auto_now_add=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return f"tm_{self.key_id}_…"
