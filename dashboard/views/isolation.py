"""Isolation: violations of the range, how much was checked, acknowledgement."""

from __future__ import annotations

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from controlplane.errors import ControlError
from controlplane.isolation.selectors import violations
from controlplane.isolation.services import acknowledge_violation
from dashboard import announce
from dashboard.access import actor_of, change_required, viewer_required
from dashboard.scope import state_of
from dashboard.views.pages import page

PAGE_ROWS = 50
VIOLATIONS_MAX = 2000
"""Beyond this an operator narrows the range or the scope."""


@viewer_required
@require_safe
def isolation(request: HttpRequest) -> HttpResponse:
    now = timezone.now()
    scope = state_of(request, now=now).scope(now)
    only_open = request.GET.get("open") == "1"
    found = violations(scope, limit=VIOLATIONS_MAX, include_acknowledged=not only_open)
    rows = Paginator(found, PAGE_ROWS).get_page(request.GET.get("page"))
    return page(
        request, "isolation", "dashboard/isolation.html", rows=rows, only_open=only_open, rows_max=VIOLATIONS_MAX
    )


@change_required
@require_POST
def acknowledge(request: HttpRequest, violation_id: int) -> HttpResponse:
    """Notes who looked at a violation and what they concluded."""
    try:
        violation = acknowledge_violation(
            violation_id, actor=actor_of(request), acknowledgement=request.POST.get("reason", "")
        )
    except ControlError as error:
        messages.error(request, error.message)
    else:
        announce.changed("isolation")
        messages.success(request, f"The violation of {violation.namespace} on {violation.worker} is acknowledged.")
    return HttpResponseRedirect(f"/isolation/?{state_of(request, now=timezone.now()).query()}")
