"""Read-only views of rollups, decisions and sources."""

from __future__ import annotations

from django.contrib import admin

from controlplane.audit.admin import ReadOnlyAdmin
from controlplane.telemetry.models import (
    DecisionRecord,
    PrefixHeatRollup,
    RequestRollup,
    SourceProgress,
    WorkerRollup,
)


@admin.register(RequestRollup)
class RequestRollupAdmin(ReadOnlyAdmin):
    list_display = ("start", "width_s", "namespace", "worker", "model", "requests", "prompt_tokens", "hit_tokens")
    list_filter = ("width_s",)


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
