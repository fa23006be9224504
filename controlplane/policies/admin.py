"""Watermark policies, to read: changes go through the services."""

from __future__ import annotations

from django.contrib import admin

from controlplane.audit.admin import ReadOnlyAdmin
from controlplane.policies.models import WatermarkPolicy


@admin.register(WatermarkPolicy)
class WatermarkPolicyAdmin(ReadOnlyAdmin):
    list_display = ("scope_id", "low", "high", "dwell_s", "revision", "updated_at")
    list_filter = ("scope",)
    search_fields = ("pool__slug", "namespace__slug", "namespace__tenant__slug")
    list_select_related = ("pool", "namespace__tenant")
