"""Prompt templates and their versions, to read: changes go through the services."""

from __future__ import annotations

from django.contrib import admin

from controlplane.audit.admin import ReadOnlyAdmin
from controlplane.prompts.models import PromptTemplate, PromptTemplateVersion


@admin.register(PromptTemplate)
class PromptTemplateAdmin(ReadOnlyAdmin):
    list_display = ("tenant", "slug", "name", "created_at")
    search_fields = ("slug", "name", "tenant__slug")
    list_select_related = ("tenant",)


@admin.register(PromptTemplateVersion)
class PromptTemplateVersionAdmin(ReadOnlyAdmin):
    list_display = ("template", "version", "status", "digest", "published_at")
    list_filter = ("status",)
    search_fields = ("template__slug", "template__tenant__slug")
    list_select_related = ("template__tenant",)
