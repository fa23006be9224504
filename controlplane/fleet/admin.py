"""Read-only views of the fleet's rows: changes go through services, which audit them."""

from __future__ import annotations

from django.contrib import admin

from controlplane.audit.admin import ReadOnlyAdmin
from controlplane.fleet.models import Finding, PoolModel, Worker, WorkerPool, WorkerStatus


@admin.register(WorkerPool)
class WorkerPoolAdmin(ReadOnlyAdmin):
    list_display = ("slug", "name", "block_size", "routing", "revision", "updated_at")


@admin.register(PoolModel)
class PoolModelAdmin(ReadOnlyAdmin):
    list_display = ("name", "pool")
    list_select_related = ("pool",)


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    list_display = ("slug", "pool", "url", "state", "tested_at", "revision")
    list_filter = ("state", "pool")
    list_select_related = ("pool",)


@admin.register(WorkerStatus)
class WorkerStatusAdmin(ReadOnlyAdmin):
    list_display = ("worker", "polled_at", "ok_at", "consecutive_failures", "error", "kv_at")
    list_select_related = ("worker__pool",)


@admin.register(Finding)
class FindingAdmin(ReadOnlyAdmin):
    list_display = ("kind", "subject", "severity", "count", "first_seen", "last_seen", "resolved_at")
    list_filter = ("severity", "kind")
