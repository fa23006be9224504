from __future__ import annotations

from django.contrib import admin

from controlplane.alerts.models import Alert, AlertRule, Silence
from controlplane.audit.admin import ReadOnlyAdmin


@admin.register(AlertRule)
class AlertRuleAdmin(ReadOnlyAdmin):
    list_display = ("slug", "measure", "comparison", "threshold", "severity", "enabled")
    list_filter = ("measure", "severity", "enabled")


@admin.register(Alert)
class AlertAdmin(ReadOnlyAdmin):
    list_display = ("rule_slug", "subject", "state", "severity", "value", "since", "resolved_at")
    list_filter = ("state", "severity")


@admin.register(Silence)
class SilenceAdmin(ReadOnlyAdmin):
    list_display = ("rule_slug", "subject", "reason", "created_by", "ends_at", "ended_at")
