"""Read-only view of isolation violations: they are acknowledged through the service, which audits it."""

from __future__ import annotations

from django.contrib import admin

from controlplane.audit.admin import ReadOnlyAdmin
from controlplane.isolation.models import IsolationViolation


@admin.register(IsolationViolation)
class IsolationViolationAdmin(ReadOnlyAdmin):
    list_display = ("at", "namespace", "worker", "cached_tokens", "bound_tokens", "request_id", "acknowledged_at")
    list_filter = ("tenant",)
