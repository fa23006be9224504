"""Published snapshots and routers, to read."""

from __future__ import annotations

from django.contrib import admin

from controlplane.audit.admin import ReadOnlyAdmin
from controlplane.snapshots.models import PublishedSnapshot, RouterStatus


@admin.register(PublishedSnapshot)
class PublishedSnapshotAdmin(ReadOnlyAdmin):
    list_display = ("version", "epoch", "created_at", "digest", "through_audit_id")
    search_fields = ("digest",)
    exclude = ("document",)  # it holds the generations' nonces and the keys' hashes


@admin.register(RouterStatus)
class RouterStatusAdmin(ReadOnlyAdmin):
    list_display = ("router_id", "snapshot_version", "epoch", "inflight", "seen_at", "last_error")
    search_fields = ("router_id",)
