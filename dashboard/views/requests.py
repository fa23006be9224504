"""Sampled requests and the decision card that explains one."""

from __future__ import annotations

from datetime import datetime

import msgspec
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.http import require_safe

from controlplane.telemetry.models import DecisionRecord
from dashboard.access import viewer_required
from dashboard.scope import PageState, state_of
from dashboard.views.pages import page
from router.contract.telemetry import DecisionSample

PAGE_ROWS = 50


@viewer_required
@require_safe
def requests(request: HttpRequest) -> HttpResponse:
    now = timezone.now()
    state = state_of(request, now=now)
    found = _in_scope(state, now)
    outcome = request.GET.get("outcome", "")
    if outcome:
        found = found.filter(outcome=outcome[:30])
    rows = Paginator(found, PAGE_ROWS).get_page(request.GET.get("page"))
    return page(request, "requests", "dashboard/requests.html", rows=rows, outcome=outcome)


@viewer_required
@require_safe
def decision(request: HttpRequest, request_id: str) -> HttpResponse:
    record = get_object_or_404(DecisionRecord, request_id=request_id)
    try:
        # The stored form leaves defaults out; only the contract's type knows that a missing term is 0.
        detail = msgspec.convert(record.detail, DecisionSample)
    except msgspec.ValidationError as error:
        raise Http404("The stored decision cannot be read.") from error
    candidates = sorted(detail.candidates, key=lambda candidate: (bool(candidate.excluded), -candidate.net_ms))
    return page(request, "requests", "dashboard/decision.html", record=record, detail=detail, candidates=candidates)


def _in_scope(state: PageState, now: datetime) -> QuerySet[DecisionRecord]:
    scope = state.scope(now)
    found = DecisionRecord.objects.filter(at__gte=scope.from_, at__lt=scope.to).order_by("-at").defer("detail")
    for name in ("tenant", "namespace", "pool", "worker"):
        value = getattr(scope, name)
        if value:
            found = found.filter(**{name: value})
    return found
