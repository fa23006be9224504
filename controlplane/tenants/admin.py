"""Users may be edited here; tenants are shown only, because their changes go through `services`."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin

from controlplane.audit.admin import ReadOnlyAdmin
from controlplane.tenants.models import Tenant, User


@admin.register(User)
class OperatorAdmin(UserAdmin):
    list_display = ("username", "role", "is_active", "is_superuser", "last_login")
    list_filter = ("role", "is_active", "is_superuser")
    fieldsets = (*(UserAdmin.fieldsets or ()), ("Tidemark", {"fields": ("role", "time_zone")}))


@admin.register(Tenant)
class TenantAdmin(ReadOnlyAdmin):
    list_display = ("slug", "name", "status", "revision", "updated_at")
    list_filter = ("status",)
    search_fields = ("slug", "name")
