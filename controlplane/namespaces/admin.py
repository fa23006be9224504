"""Namespaces and keys, to read: changes go through the services."""

from __future__ import annotations

from django.contrib import admin

from controlplane.audit.admin import ReadOnlyAdmin
from controlplane.namespaces.models import ApiKey, CacheNamespace


@admin.register(CacheNamespace)
class CacheNamespaceAdmin(ReadOnlyAdmin):
    list_display = ("namespace_id", "name", "status", "generation", "on_stale", "revision", "updated_at")
    list_filter = ("status", "on_stale", "unknown_fields")
    search_fields = ("slug", "name", "tenant__slug")
    list_select_related = ("tenant",)
    exclude = ("generation_nonce",)


@admin.register(ApiKey)
class ApiKeyAdmin(ReadOnlyAdmin):
    list_display = ("key_id", "namespace", "name", "status", "expires_at", "created_by", "created_at")
    list_filter = ("status",)
    search_fields = ("key_id", "name", "namespace__slug", "namespace__tenant__slug")
    list_select_related = ("namespace__tenant",)
    exclude = ("secret_hash",)
