"""Deliveries of tasks, to read."""

from __future__ import annotations

from django.contrib import admin

from controlplane.audit.admin import ReadOnlyAdmin
from controlplane.deadletters.models import TaskDelivery


@admin.register(TaskDelivery)
class TaskDeliveryAdmin(ReadOnlyAdmin):
    list_display = ("task", "subject", "deliveries", "error", "last_at", "dead_at")
