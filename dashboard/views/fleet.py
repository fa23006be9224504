"""The fleet page, its fragments, and its charts as table and CSV."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from dashboard.access import signed_in, viewer_required
from dashboard.data import PageData
from dashboard.fragments import PAGES, render_page, render_panel
from dashboard.panels import CHARTS, PANELS
from dashboard.scope import state_of
from dashboard.tables import table_of, to_csv
from dashboard.views.pages import page

TABLE_ROWS_MAX = 400


@viewer_required
@require_safe
def fleet(request: HttpRequest) -> HttpResponse:
    return page(request, "fleet", "dashboard/fleet.html")


@viewer_required
@require_safe
def page_fragments(request: HttpRequest, name: str) -> HttpResponse:
    """All live panels of a page, one after the other: what the websocket pushes, by polling."""
    if name not in PAGES:
        raise Http404("There is no such page.")
    now = timezone.now()
    rendering = render_page(name, state_of(request, now=now), may_change=signed_in(request).may_change, now=now)
    response = HttpResponse("\n".join(rendering.panels.values()))
    response["X-Rendered-At"] = str(rendering.at.timestamp())
    response["Cache-Control"] = "no-store"
    return response


@viewer_required
@require_safe
def panel_fragment(request: HttpRequest, name: str) -> HttpResponse:
    if name not in PANELS:
        raise Http404("There is no such panel.")
    now = timezone.now()
    html = render_panel(name, state_of(request, now=now), may_change=signed_in(request).may_change, now=now)
    return HttpResponse(html)


@viewer_required
@require_safe
def chart_table(request: HttpRequest, name: str) -> HttpResponse:
    """A chart's buckets, newest first, as a page; htmx takes the table alone into the panel."""
    table = table_of(_chart_name(name), _data(request))
    rows = table.rows[::-1][:TABLE_ROWS_MAX]
    context: dict[str, Any] = {"title": PANELS[name].title, "name": name, "headers": table.headers, "rows": rows}
    if request.headers.get("HX-Request"):
        return render(request, "dashboard/_fragments/table.html", context)
    return page(request, "fleet", "dashboard/table.html", panels=False, **context)


@viewer_required
@require_safe
def chart_csv(request: HttpRequest, name: str) -> HttpResponse:
    content = to_csv(table_of(_chart_name(name), _data(request)))
    disposition = f'attachment; filename="tidemark-{name}.csv"'
    return HttpResponse(content, content_type="text/csv; charset=utf-8", headers={"Content-Disposition": disposition})


def _chart_name(name: str) -> str:
    if name not in CHARTS:
        raise Http404("There is no such chart.")
    return name


def _data(request: HttpRequest) -> PageData:
    now = timezone.now()
    return PageData(state=state_of(request, now=now), now=now)
