"""Eviction churn: what is evicted, for whom, and what it costs."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from dashboard.access import viewer_required
from dashboard.views.pages import page


@viewer_required
@require_safe
def evictions(request: HttpRequest) -> HttpResponse:
    return page(request, "evictions", "dashboard/evictions.html")
