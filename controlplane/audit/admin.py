"""The audit log, to read; and the base of every admin page whose rows change through services only."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from controlplane.audit.models import AuditEntry


class ReadOnlyAdmin(admin.ModelAdmin):
    """Lists, search and filters; no add, change, delete or action: those would bypass the audit."""

    actions = None
    list_per_page = 50
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    list_display = ("id", "at", "actor", "action", "object_id", "affects_routing", "reason")
    list_filter = ("affects_routing", "object_type")
    search_fields = ("actor", "action", "object_id", "request_id")
    date_hierarchy = "at"
