"""Tenants with their namespaces and keys, read-only; onboarding goes through the API."""

from __future__ import annotations

from django.db.models import Count, Prefetch, Q
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from controlplane.namespaces.models import ApiKey, CacheNamespace
from controlplane.tenants.models import Tenant
from dashboard.access import viewer_required
from dashboard.views.pages import page

TENANTS_MAX = 500


@viewer_required
@require_safe
def tenants(request: HttpRequest) -> HttpResponse:
    active = Count("keys", filter=Q(keys__status=ApiKey.KeyStatus.ACTIVE))
    namespaces = CacheNamespace.objects.annotate(keys_active=active, keys_all=Count("keys")).order_by("slug")
    rows = Tenant.objects.prefetch_related(Prefetch("namespaces", queryset=namespaces))[:TENANTS_MAX]
    return page(request, "tenants", "dashboard/tenants.html", tenants=rows, rows_max=TENANTS_MAX)
