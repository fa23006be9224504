"""Every address of the web server."""

from __future__ import annotations

from allauth.account.decorators import secure_admin_login
from django.contrib import admin
from django.urls import include, path

from controlplane.api.health import healthz, readyz

# The administration's own form knows no second factor.
admin.site.login = secure_admin_login(admin.site.login)  # type: ignore[method-assign]

urlpatterns = [
    path("healthz", healthz, name="healthz"),
    path("readyz", readyz, name="readyz"),
    path("admin/", admin.site.urls),
    path("accounts/", include("controlplane.tenants.urls")),
    path("api/", include("controlplane.api.urls")),
    path("", include("dashboard.urls")),
]
