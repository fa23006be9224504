"""Read-only views: violations are acknowledged through the service, which audits it; canaries are measured."""

from __future__ import annotations

from django.contrib import admin

from controlplane.audit.admin import ReadOnlyAdmin
from controlplane.isolation.models import CanaryResult, IsolationViolation


@admin.register(IsolationViolation)
class IsolationViolationAdmin(ReadOnlyAdmin):
    list_display = ("at", "namespace", "worker", "cached_tokens", "bound_tokens", "request_id", "acknowledged_at")
    list_filter = ("tenant",)


@admin.register(CanaryResult)
class CanaryResultAdmin(ReadOnlyAdmin):
    list_display = ("checked_at", "worker", "endpoint", "verdict", "reason")
    list_filter = ("verdict", "endpoint")
