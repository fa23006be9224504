"""Change requests, to read: they are decided through the services."""

from __future__ import annotations

from django.contrib import admin

from controlplane.approvals.models import ChangeRequest
from controlplane.audit.admin import ReadOnlyAdmin


@admin.register(ChangeRequest)
class ChangeRequestAdmin(ReadOnlyAdmin):
    list_display = ("kind", "subject", "state", "proposed_by", "decided_by", "expires_at")
    list_filter = ("kind", "state")
    search_fields = ("subject",)
