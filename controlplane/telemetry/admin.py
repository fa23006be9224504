"""Read-only views of rollups, decisions and sources."""

from __future__ import annotations

from django.contrib import admin

from controlplane.audit.admin import ReadOnlyAdmin
from controlplane.telemetry.models import (
    DecisionRecord,
    PrefixHeatRollup,
    RequestRollup,
    RequestTotal,
    SliceRollup,
    SourceProgress,
    WorkerRollup,
)


@admin.register(RequestRollup)
class RequestRollupAdmin(ReadOnlyAdmin):
    list_display = ("start", "width_s", "namespace", "worker", "model", "requests", "prompt_tokens", "hit_tokens")
    list_filter = ("width_s",)


@admin.register(RequestTotal)
class RequestTotalAdmin(ReadOnlyAdmin):
    list_display = ("start", "width_s", "pool", "model", "requests", "prompt_tokens", "hit_tokens")
    list_filter = ("width_s",)


@admin.register(SliceRollup)
class SliceRollupAdmin(ReadOnlyAdmin):
    list_display = ("start", "width_s", "slice", "name", "model", "requests", "prompt_tokens", "hit_tokens")
    list_filter = ("width_s", "slice")


@admin.register(WorkerRollup)
class WorkerRollupAdmin(ReadOnlyAdmin):
    list_display = ("start", "width_s", "worker", "polls_ok", "polls_failed", "stored_blocks", "removed_blocks")
    list_filter = ("width_s",)


@admin.register(PrefixHeatRollup)
class PrefixHeatRollupAdmin(ReadOnlyAdmin):
    list_display = ("start", "width_s", "namespace", "prefix", "tokens", "requests")
    list_filter = ("width_s",)


@admin.register(DecisionRecord)
class DecisionRecordAdmin(ReadOnlyAdmin):
    list_display = ("at", "request_id", "namespace", "worker", "reason", "outcome", "ttft_ms")
    search_fields = ("request_id",)


@admin.register(SourceProgress)
class SourceProgressAdmin(ReadOnlyAdmin):
    list_display = ("source", "boot", "last_seq", "last_at", "applied_at")
