"""Prompt templates: the assembly order of a tenant's prompts, versioned (S0.5)."""

from __future__ import annotations

from typing import Any

from django.db import models

from controlplane.tenants.models import Tenant, slug_validator


class PromptTemplate(models.Model):
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="templates")
    slug = models.CharField(max_length=48, validators=[slug_validator])
    name = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("tenant__slug", "slug")
        constraints = [models.UniqueConstraint(fields=("tenant", "slug"), name="template_unique_in_tenant")]

    def __str__(self) -> str:
        return f"{self.tenant.slug}/{self.slug}"


class PromptTemplateVersion(models.Model):
    """One version; a draft may change, a published one never does (`services` refuse, and so does `save`)."""

    class VersionStatus(models.TextChoices):
        DRAFT = "draft", "Draft"
        PUBLISHED = "published", "Published"
        RETIRED = "retired", "Retired"

    template = models.ForeignKey(PromptTemplate, on_delete=models.PROTECT, related_name="versions")
    version = models.PositiveIntegerField()
    status = models.CharField(max_length=10, choices=VersionStatus, default=VersionStatus.DRAFT)
    segments = models.JSONField(default=list)
    """Ordered list of {"kind": "static" | "semi_static" | "dynamic", "name": str, "text": str}."""
    digest = models.CharField(max_length=64, blank=True)
    """SHA-256 of the canonical segments, set at publication."""
    tools_digest = models.CharField(max_length=64, blank=True)
    """SHA-256 of the tools in its static segments, set at publication; "" = it has none."""
    accepted_lints = models.JSONField(default=list, blank=True)
    """Codes of errors that were accepted at publication; the reason is in the audit log."""
    is_public = models.BooleanField(default=False)
    """Its static text is on the allow-list of shared-public namespaces (S3.11); changed by `public_services` alone."""
    revision = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)
    published_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("template", "-version")
        constraints = [
            models.UniqueConstraint(fields=("template", "version"), name="template_version_unique"),
        ]

    def __str__(self) -> str:
        return f"{self.template.slug}@{self.version}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Raises ValueError when the segments of a version that was ever published would change."""
        if not self._state.adding:
            stored = type(self).objects.values("status", "segments", "digest", "version").get(pk=self.pk)
            frozen = stored["status"] != self.VersionStatus.DRAFT
            if frozen and (stored["segments"], stored["digest"], stored["version"]) != (
                self.segments,
                self.digest,
                self.version,
            ):
                raise ValueError(f"{self} is published and cannot change")
        super().save(*args, **kwargs)


class PromptGolden(models.Model):
    """What a published version's static part was in tokens of a pool, when it was last accepted.

    Recomputed by a tick: a tokenizer or chat template that was changed in place shows as another digest.
    """

    version = models.ForeignKey(PromptTemplateVersion, on_delete=models.CASCADE, related_name="goldens")
    pool = models.CharField(max_length=48)
    """Slug. Text: the pool may go while the version stays."""
    tokenizer_digest = models.CharField(max_length=64)
    chat_template_digest = models.CharField(max_length=64, blank=True)
    tokens = models.PositiveIntegerField()
    digest = models.CharField(max_length=64)
    """SHA-256 of the token ids."""
    accepted_at = models.DateTimeField()
    checked_at = models.DateTimeField()
    fault = models.CharField(max_length=500, blank=True)
    """What the last check found; "" = as accepted."""

    class Meta:
        ordering = ("version", "pool")
        constraints = [models.UniqueConstraint(fields=("version", "pool"), name="prompt_golden_unique")]

    def __str__(self) -> str:
        return f"{self.version} in {self.pool}"
