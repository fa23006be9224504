"""The hit-tokens page."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from controlplane.tenants.roles import Capability
from dashboard.access import requires_somewhere
from dashboard.views.pages import page


@requires_somewhere(Capability.METRICS_VIEW)
@require_safe
def hits(request: HttpRequest) -> HttpResponse:
    return page(request, "hits", "dashboard/hits.html")
