"""Users may be edited here; tenants are shown only, because their changes go through `services`."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.db import transaction
from django.http import HttpRequest

from controlplane.audit.admin import ReadOnlyAdmin
from controlplane.tenants.member_services import account_facts, record_account
from controlplane.tenants.models import Membership, Tenant, User


class MembershipInline(admin.TabularInline):
    """Shown only: roles are granted by `POST /api/v1/members`, which leaves an audit entry."""

    model = Membership
    fields = readonly_fields = ("role", "tenant", "created_at")
    extra = 0
    can_delete = False

    def has_add_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        return False


@admin.register(User)
class OperatorAdmin(UserAdmin):
    list_display = ("username", "is_active", "is_superuser", "last_login")
    list_filter = ("is_active", "is_superuser", "memberships__role")
    fieldsets = (*(UserAdmin.fieldsets or ()), ("Tidemark", {"fields": ("time_zone",)}))
    inlines = (MembershipInline,)
    actions = None

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        before = account_facts(User.objects.get(pk=obj.pk)) if change else None
        with transaction.atomic():
            super().save_model(request, obj, form, change)
            record_account(obj, actor=_actor(request), before=before, after=account_facts(obj))

    def delete_model(self, request: HttpRequest, obj: User) -> None:
        with transaction.atomic():
            record_account(obj, actor=_actor(request), before=account_facts(obj), after=None)
            super().delete_model(request, obj)


def _actor(request: HttpRequest) -> str:
    return f"user:{request.user.get_username()}"


@admin.register(Tenant)
class TenantAdmin(ReadOnlyAdmin):
    list_display = ("slug", "name", "status", "revision", "updated_at")
    list_filter = ("status",)
    search_fields = ("slug", "name")
