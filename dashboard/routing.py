"""Websocket addresses."""

from __future__ import annotations

from django.urls import URLPattern, path

from dashboard.consumers import LiveConsumer

websocket_urlpatterns: list[URLPattern] = [path("ws/live", LiveConsumer.as_asgi())]
