"""Placement rules, to read: changes go through the services."""

from __future__ import annotations

from django.contrib import admin

from controlplane.audit.admin import ReadOnlyAdmin
from controlplane.placements.models import PlacementRule


@admin.register(PlacementRule)
class PlacementRuleAdmin(ReadOnlyAdmin):
    list_display = ("prefix", "namespace", "pool", "homes", "until", "outcome", "created_by")
    list_filter = ("outcome",)
    search_fields = ("prefix",)
    list_select_related = ("namespace__tenant", "pool")
