"""What if: questions over recorded traffic, their form, their progress and their answers."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from controlplane.errors import ControlError, NotFound
from controlplane.telemetry.recorded import Extent, recorded_extent
from controlplane.telemetry.windows import Scope
from controlplane.tenants.roles import Access, Capability
from controlplane.what_if import services
from controlplane.what_if.facts import pools_of
from controlplane.what_if.models import WhatIf
from controlplane.what_if.scenarios import POLICIES
from controlplane.what_if.selectors import answer_for, find_what_if, what_ifs_of
from dashboard.access import access_of, actor_of, requires_somewhere
from dashboard.charts.what_if import what_if_figure
from dashboard.forms import Form
from dashboard.scope import PageState, state_of
from dashboard.tables import to_csv
from dashboard.views.pages import page
from dashboard.what_if_form import SEEDS, SHOWN, SPANS, asked_in, prefilled, typed
from dashboard.what_if_table import comparison_of, csv_of

PAGE = "what-if"
PAGE_ROWS = 50
ASK = Capability.WHAT_IFS_ASK


@requires_somewhere(Capability.WHAT_IFS_VIEW)
@require_safe
def what_ifs(request: HttpRequest) -> HttpResponse:
    access, now = access_of(request), timezone.now()
    rows = what_ifs_of(access.tenants(Capability.WHAT_IFS_VIEW))
    shown = Paginator(rows, PAGE_ROWS).get_page(state_of(request, now=now).page_number)
    return page(
        request,
        PAGE,
        "dashboard/what_ifs.html",
        rows=shown,
        under_way=any(row.under_way for row in shown),
        extent=_recorded(access, now),
        may_ask=access.may_somewhere(ASK),
    )


@requires_somewhere(ASK)
@require_http_methods(["GET", "HEAD", "POST"])
def what_if_ask(request: HttpRequest) -> HttpResponse:
    """GET opens the form, filled in by the address; POST asks."""
    access, now = access_of(request), timezone.now()
    state = state_of(request, now=now)
    sees_fleet = access.may(Capability.FLEET_VIEW)
    if request.method != "POST":
        return _form_page(request, Form(prefilled(request.GET, state, sees_fleet=sees_fleet)), state, now)
    form = Form(typed(request))
    fields: dict[str, str] = {}
    try:
        asked = asked_in(form.values, state, now=now)
        fields = asked.fields
        row = services.ask(actor=actor_of(request), access=access, **asked.values)
    except ControlError as error:
        return _form_page(request, form.refused(error, names=fields), state, now, status=error.status)
    messages.success(request, "It is asked: the simulation begins within seconds.")
    return _to(request, row)


@requires_somewhere(Capability.WHAT_IFS_VIEW)
@require_safe
def what_if(request: HttpRequest, what_if_id: int) -> HttpResponse:
    """Its progress, fetched again each second, and then its answer."""
    access, row = access_of(request), _found(request, what_if_id)
    answer = answer_for(row, sees_fleet=access.may(Capability.FLEET_VIEW))
    return page(
        request,
        PAGE,
        "dashboard/what_if.html",
        row=row,
        names=[scenario["name"] for scenario in row.question["scenarios"]],
        share=row.simulated / row.to_simulate if row.to_simulate else None,
        left_s=_left_s(row),
        found=comparison_of(answer, currency=row.gpu_currency) if answer else None,
        answer=answer,
        good_s=row.question.get("good_s"),
        charts=_charts(answer) if answer else [],
        may_cancel=row.under_way and services.may_ask(access, row.tenant),
        may_ask=access.may_somewhere(ASK),
    )


@requires_somewhere(Capability.WHAT_IFS_VIEW)
@require_safe
def what_if_csv(request: HttpRequest, what_if_id: int) -> HttpResponse:
    row = _found(request, what_if_id)
    answer = answer_for(row, sees_fleet=access_of(request).may(Capability.FLEET_VIEW))
    if answer is None:
        raise Http404("It has no answer.")
    headers = {"Content-Disposition": f'attachment; filename="tidemark-what-if-{row.pk}.csv"'}
    return HttpResponse(to_csv(csv_of(answer)), content_type="text/csv; charset=utf-8", headers=headers)


@requires_somewhere(ASK)
@require_POST
def what_if_cancel(request: HttpRequest, what_if_id: int) -> HttpResponse:
    row = _found(request, what_if_id)
    try:
        services.cancel(row.pk, actor=actor_of(request), access=access_of(request))
    except ControlError as error:
        messages.error(request, error.message)
    else:
        messages.success(request, "It is cancelled.")
    return _to(request, row)


def _form_page(request: HttpRequest, form: Form, state: PageState, now: datetime, *, status: int = 200) -> HttpResponse:
    access = access_of(request)
    own = access.tenants(ASK)
    tenant = form.values.get("tenant", "")
    return page(
        request,
        PAGE,
        "dashboard/what_if_form.html",
        status=status,
        form=form,
        pools=pools_of("" if own is None else tenant if tenant in own else min(own)),
        own_tenants=None if own is None else sorted(own),
        sees_fleet=access.may(Capability.FLEET_VIEW),
        spans=[*([(SHOWN, f"as shown above: {state.range_words}")] if not state.live else []), *SPANS.items()],
        policies=list(POLICIES.items()),
        seeds=SEEDS,
        extent=_recorded(access, now),
    )


def _recorded(access: Access, now: datetime) -> Extent:
    """In the longest range that can be asked about: the fleet's, or that of the first own tenant that has any."""
    begin = now - services.SPAN_MAX
    tenants = access.tenants(Capability.WHAT_IFS_VIEW)
    found = [
        recorded_extent(Scope(from_=begin, to=now + timedelta(seconds=1), tenant=tenant))
        for tenant in (sorted(tenants)[:3] if tenants is not None else [""])
    ]
    return max(found, key=lambda extent: extent.requests)


def _left_s(row: WhatIf) -> float | None:
    """As long as it has gone on so far; None while that tells little."""
    if not row.under_way or not row.started_at or row.simulated < row.to_simulate * 0.05 or not row.to_simulate:
        return None
    gone_s = (timezone.now() - row.started_at).total_seconds()
    return gone_s * (row.to_simulate - row.simulated) / row.simulated


def _charts(answer: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(id, title, figure as JSON)."""
    scenarios, measured = answer["scenarios"], answer["measured"]
    wanted = (
        ("what-if-hits", "Hit tokens", "hit_token_share", 100.0, "% of prompt tokens"),
        ("what-if-ttft", "TTFT p95", "ttft_p95_s", 1000.0, "ms"),
    )
    figures = [
        (name, title, what_if_figure(scenarios, key, factor=factor, title=unit, measured=measured[key]))
        for name, title, key, factor, unit in wanted
    ]
    return [
        (name, title, json.dumps(figure, separators=(",", ":"), allow_nan=False))
        for name, title, figure in figures
        if figure
    ]


def _found(request: HttpRequest, what_if_id: int) -> WhatIf:
    try:
        return find_what_if(what_if_id, access_of(request).tenants(Capability.WHAT_IFS_VIEW))
    except NotFound as error:
        raise Http404(error.message) from error


def _to(request: HttpRequest, row: WhatIf) -> HttpResponse:
    query = state_of(request, now=timezone.now()).across()
    return HttpResponseRedirect(f"{reverse('what-if', args=[row.pk])}?{query}")
