"""Webhooks and their deliveries, to read: they change through the services."""

from __future__ import annotations

from django.contrib import admin

from controlplane.audit.admin import ReadOnlyAdmin
from controlplane.webhooks.models import Delivery, Subscription


@admin.register(Subscription)
class SubscriptionAdmin(ReadOnlyAdmin):
    list_display = ("slug", "origin", "format", "enabled", "created_at")
    exclude = ("sealed",)


@admin.register(Delivery)
class DeliveryAdmin(ReadOnlyAdmin):
    list_display = ("id", "event", "subscription", "state", "attempts", "last_status", "created_at")
    list_filter = ("state",)
