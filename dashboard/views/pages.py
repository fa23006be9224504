"""What every page shares: its state, its live panels and the frame around them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from dashboard.access import signed_in
from dashboard.fragments import PAGES, render_page
from dashboard.scope import RANGES, PageState, state_of


@dataclass(frozen=True, slots=True)
class RailItem:
    page: str
    label: str
    icon: str
    path: str
    key: str
    """Second key of the shortcut `g <key>`."""


RAIL = (
    RailItem("fleet", "Fleet", "dashboard", "/", "f"),
    RailItem("workers", "Workers", "server-2", "/workers/", "w"),
    RailItem("policies", "Policies", "adjustments-horizontal", "/policies/", "p"),
    RailItem("isolation", "Isolation", "shield-check", "/isolation/", "i"),
    RailItem("requests", "Requests", "route", "/requests/", "r"),
    RailItem("tenants", "Tenants", "users", "/tenants/", "t"),
)


def page(
    request: HttpRequest, name: str, template: str, *, status: int = 200, panels: bool = True, **context: Any
) -> HttpResponse:
    """A page in its frame. `name` is its rail item and, when it has any, names its live panels."""
    now = timezone.now()
    state = state_of(request, now=now)
    may_change = signed_in(request).may_change
    live = panels and name in PAGES
    rendering = render_page(name, state, may_change=may_change, now=now) if live else None
    frame = {
        "page": name if live else "",
        "active": name,
        "rail": RAIL,
        "state": state,
        "query": state.query(),
        "zone": state.zone,
        "now": now,
        "may_change": may_change,
        "read_only": not may_change,
        "ranges": [_range(key, label, state) for key, label in RANGES.items()],
        "crumbs": _crumbs(state),
        "panels": rendering.panels if rendering else {},
        "rendered_at": rendering.at if rendering else now,
    }
    return render(request, template, frame | context, status=status)


def _range(key: str, label: str, state: PageState) -> dict[str, object]:
    return {"label": label, "on": state.live and state.from_ == key, "query": state.query(from_=key, to="")}


def _crumbs(state: PageState) -> list[tuple[str, str]]:
    """Words and query of each step of the scope: all › tenant › namespace › worker …"""
    crumbs = [("all", state.query(tenant="", ns="", model="", worker="", pool=""))]
    if state.tenant:
        crumbs.append((state.tenant, state.query(ns="", model="", worker="", pool="")))
    for name in ("ns", "pool", "model", "worker"):
        value = getattr(state, name)
        if value:
            crumbs.append((value, state.query()))
    return crumbs
