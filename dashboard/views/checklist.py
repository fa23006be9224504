"""The go-live checklist."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from dashboard.access import viewer_required
from dashboard.views.pages import page


@viewer_required
@require_safe
def checklist(request: HttpRequest) -> HttpResponse:
    return page(request, "checklist", "dashboard/checklist.html")
