"""What every page shares: its state, its live panels and the frame around them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from dashboard.access import access_of, signed_in
from dashboard.bell import polled_bell
from dashboard.fragments import render_page
from dashboard.live_pages import PAGES, viewing
from dashboard.rail import rail_of
from dashboard.scope import state_of
from dashboard.topbar import topbar_of


def page(
    request: HttpRequest,
    name: str,
    template: str,
    *,
    status: int = 200,
    panels: bool = True,
    active: str = "",
    item: str = "",
    **context: Any,
) -> HttpResponse:
    """A page in its frame. `name` is its rail item and, when it has any, names its live panels.

    `active`: another rail item than `name`. `item`: the one thing that its live panels are about.
    """
    now = timezone.now()
    state = replace(state_of(request, now=now), item=item)
    access = access_of(request)
    may_change = signed_in(request).may_change
    live = panels and name in PAGES
    view = viewing(name, state, access) if live else None
    rendering = render_page(view, now=now) if view else None
    state = view.state if view else state
    shown = rendering.panels if rendering else {}
    frame = {
        "page": name if live else "",
        "active": active or name,
        "rail": rail_of(access),
        "state": state,
        "query": state.across(),
        "live_query": state.query(),
        "zone": state.zone,
        "now": now,
        "may_change": may_change,
        "read_only": not may_change,
        "bar": topbar_of(state, now=now),
        "panels": shown,
        "bell": (shown.get("alerts") if state.live else "") or polled_bell(access, state.across(), now=now),
        "rendered_at": rendering.at if rendering else now,
    }
    return render(request, template, frame | context, status=status)
