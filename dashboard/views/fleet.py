"""The fleet page, its fragments, and its charts as table and CSV."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from controlplane.tenants.roles import Capability
from dashboard.access import access_of, signed_in
from dashboard.data import PageData
from dashboard.fragments import render_page, render_panel
from dashboard.live_pages import in_own_tenant, viewing
from dashboard.panels import PANELS
from dashboard.scope import PageState, state_of
from dashboard.tables import Table, to_csv
from dashboard.views.pages import page
from dashboard.views.saved import default_address

TABLE_ROWS_MAX = 400


@login_required
@require_safe
def fleet(request: HttpRequest) -> HttpResponse:
    """Who has a role in single tenants only begins at those; the bare address leads to one's default view."""
    if not request.GET and (address := default_address(signed_in(request))):
        return HttpResponseRedirect(address)
    if not signed_in(request).may_view:
        return HttpResponseRedirect("/status/")
    return page(request, "fleet", "dashboard/fleet.html")


@login_required
@require_safe
def page_fragments(request: HttpRequest, name: str) -> HttpResponse:
    """All live panels of a page, one after the other: what the websocket pushes, by polling."""
    now = timezone.now()
    rendering = render_page(viewing(name, state_of(request, now=now), access_of(request)), now=now)
    response = HttpResponse("\n".join(rendering.panels.values()))
    response["X-Rendered-At"] = str(rendering.at.timestamp())
    response["Cache-Control"] = "no-store"
    return response


@login_required
@require_safe
def panel_fragment(request: HttpRequest, name: str) -> HttpResponse:
    now = timezone.now()
    state = _state_for(request, name, now)
    html = render_panel(name, state, may_change=signed_in(request).may_change, now=now)
    return HttpResponse(html)


def _state_for(request: HttpRequest, name: str, now: datetime) -> PageState:
    """The state of a panel: of one's own tenant for who has a role in single tenants only."""
    panel = PANELS.get(name)
    if panel is None:
        raise Http404("There is no such panel.")
    state, access = state_of(request, now=now), access_of(request)
    if access.may(Capability.FLEET_VIEW):
        return state
    if not panel.of_tenants:
        raise PermissionDenied("Your role does not allow this. Ask an administrator.")
    return in_own_tenant(state, access, Capability.METRICS_VIEW)


@login_required
@require_safe
def chart_table(request: HttpRequest, name: str) -> HttpResponse:
    """A chart's buckets, newest first, as a page; htmx takes the table alone into the panel."""
    table = _table(request, name)
    rows = table.rows[::-1][:TABLE_ROWS_MAX]
    context: dict[str, Any] = {"title": PANELS[name].title, "chart": name, "headers": table.headers, "rows": rows}
    if request.headers.get("HX-Request"):
        return render(request, "dashboard/_fragments/table.html", context)
    return page(request, "fleet", "dashboard/table.html", panels=False, main_page=True, **context)


@login_required
@require_safe
def chart_csv(request: HttpRequest, name: str) -> HttpResponse:
    content = to_csv(_table(request, name))
    disposition = f'attachment; filename="tidemark-{name}.csv"'
    return HttpResponse(content, content_type="text/csv; charset=utf-8", headers={"Content-Disposition": disposition})


def _table(request: HttpRequest, name: str) -> Table:
    table = PANELS[name].table if name in PANELS else None
    if table is None:
        raise Http404("There is no such chart.")
    now = timezone.now()
    return table(PageData(state=_state_for(request, name, now), now=now))
