"""Every address of the web server."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

from controlplane.api.health import healthz, readyz

urlpatterns = [
    path("healthz", healthz, name="healthz"),
    path("readyz", readyz, name="readyz"),
    path("admin/", admin.site.urls),
    path("accounts/", include("allauth.account.urls")),
    path("api/", include("controlplane.api.urls")),
    path("", include("dashboard.urls")),
]
