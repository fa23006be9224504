"""Revocations and routers' acknowledgements, to read."""

from __future__ import annotations

from django.contrib import admin

from controlplane.audit.admin import ReadOnlyAdmin
from controlplane.revocations.models import Revocation, RouterAck


@admin.register(Revocation)
class RevocationAdmin(ReadOnlyAdmin):
    list_display = ("epoch", "kind", "subject", "actor", "created_at", "announced_at")
    list_filter = ("kind",)
    search_fields = ("subject", "tenant")


@admin.register(RouterAck)
class RouterAckAdmin(ReadOnlyAdmin):
    list_display = ("revocation", "router_id", "acked_at", "way")
    search_fields = ("router_id",)
