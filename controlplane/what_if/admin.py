"""Questions of what if, to read: they change through the services."""

from __future__ import annotations

from django.contrib import admin

from controlplane.audit.admin import ReadOnlyAdmin
from controlplane.what_if.models import WhatIf


@admin.register(WhatIf)
class WhatIfAdmin(ReadOnlyAdmin):
    list_display = ("id", "pool", "tenant", "asked_by", "state", "error", "created_at")
    list_filter = ("state",)
    exclude = ("question", "answer")
