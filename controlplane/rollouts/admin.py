"""Roll-outs, to read: they are driven through the services."""

from __future__ import annotations

from django.contrib import admin

from controlplane.audit.admin import ReadOnlyAdmin
from controlplane.policies.models import PolicyRevision, Rollout, RoutingPolicy


@admin.register(Rollout)
class RolloutAdmin(ReadOnlyAdmin):
    list_display = ("kind", "scope", "candidate", "state", "stage", "share", "author", "started_at")
    list_filter = ("kind", "state")


@admin.register(PolicyRevision)
class PolicyRevisionAdmin(ReadOnlyAdmin):
    list_display = ("kind", "scope", "number", "origin", "author", "created_at")
    list_filter = ("kind", "origin")
    search_fields = ("scope",)


@admin.register(RoutingPolicy)
class RoutingPolicyAdmin(ReadOnlyAdmin):
    list_display = ("scope_id", "values", "revision", "expires_at", "updated_at")
    list_select_related = ("pool", "namespace__tenant")
