"""Reports, to read: they change through the services. Files, figures and links have pages of their own."""

from __future__ import annotations

from django.contrib import admin

from controlplane.audit.admin import ReadOnlyAdmin
from controlplane.reports.models import ReportDelivery, ReportRun, ReportSchedule


@admin.register(ReportSchedule)
class ReportScheduleAdmin(ReadOnlyAdmin):
    list_display = ("slug", "scope", "subject", "cron", "time_zone", "enabled", "next_due_at")
    exclude = ("recipients",)


@admin.register(ReportRun)
class ReportRunAdmin(ReadOnlyAdmin):
    list_display = ("id", "schedule", "due_at", "state", "attempts", "created_at")
    list_filter = ("state",)
    exclude = ("figures", "settings")


@admin.register(ReportDelivery)
class ReportDeliveryAdmin(ReadOnlyAdmin):
    list_display = ("id", "run", "state", "attempts", "last_error", "created_at")
    list_filter = ("state",)
