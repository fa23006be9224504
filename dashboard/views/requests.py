"""Sampled requests: found by id, filtered, as CSV; and the card that explains one.

A member of a tenant sees the tenant's own. Names of workers are shown, so that they can be spoken of; their addresses,
and how busy they are with others' requests, are the operators'.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from urllib.parse import urlencode

import msgspec
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from controlplane.policies.revisions import in_force_at
from controlplane.telemetry.decisions import Wanted, decisions, find_decision
from controlplane.telemetry.models import DecisionRecord
from controlplane.tenants.roles import Capability
from dashboard.access import access_of, requires_somewhere
from dashboard.decision_card import card_of
from dashboard.live_pages import in_own_tenant
from dashboard.scope import PageState, state_of
from dashboard.tables import Table, to_csv
from dashboard.views.pages import page
from dashboard.words import WORDS, worded
from router.contract.telemetry import ERROR_KINDS, DecisionSample

PAGE_ROWS = 50
CSV_ROWS_MAX = 10_000
TEXT_MAX = 64
REASONS = ("prefix", "session", "home", "spill_load", "spill_watermark", "least_outstanding", "round_robin", "retry")
OUTCOMES = ("ok", *ERROR_KINDS)
OFF_CHOICES = (64, 256, 1024, 4096)
requests_viewer = requires_somewhere(Capability.REQUESTS_VIEW)


@dataclass(frozen=True, slots=True)
class Filters:
    """As typed; "" = any."""

    outcome: str = ""
    reason: str = ""
    ttft: str = ""
    """Milliseconds at least."""
    off: str = ""
    """Tokens between prediction and delivery, at least."""

    @property
    def query(self) -> str:
        pairs = {name: getattr(self, name) for name in self.__slots__ if getattr(self, name)}
        return f"&{urlencode(pairs)}" if pairs else ""

    @property
    def wanted(self) -> Wanted:
        off = _number(self.off)
        return Wanted(self.outcome, self.reason, _number(self.ttft), None if off is None else int(off))


@requests_viewer
@require_safe
def requests(request: HttpRequest) -> HttpResponse:
    """`?id=` leads to that request's card when it is kept, and says so when it is not."""
    sought = request.GET.get("id", "").strip()[:TEXT_MAX]
    state, filters = _state(request), _filters(request)
    if sought and find_decision(sought, tenants=access_of(request).tenants(Capability.REQUESTS_VIEW)):
        return HttpResponseRedirect(f"{reverse('decision', args=[sought])}?{state.across()}")
    rows = Paginator(_found(request, state, filters), PAGE_ROWS).get_page(request.GET.get("page"))
    return page(
        request,
        "requests",
        "dashboard/requests.html",
        state=state,
        query=state.across(),
        rows=rows,
        sought=sought,
        filters=filters,
        extra_query=filters.query,
        reasons=[(reason, WORDS.get(reason, worded(reason))) for reason in REASONS],
        outcomes=[(outcome, worded(outcome)) for outcome in OUTCOMES],
        offs=[str(tokens) for tokens in OFF_CHOICES],
        of_fleet=_sees_fleet(request),
    )


@requests_viewer
@require_safe
def requests_csv(request: HttpRequest) -> HttpResponse:
    """The filtered list, newest first, CSV_ROWS_MAX rows at most; times in UTC."""
    found = _found(request, _state(request), _filters(request))[:CSV_ROWS_MAX]
    headers = ["at", "request", "tenant", "namespace", "model", "pool", "worker", "reason", "outcome", "ttft_ms",
               "predicted_hit_tokens", "cached_tokens"]  # fmt: skip
    rows = [
        [row.at.isoformat(), row.request_id, row.tenant, row.namespace, row.model, row.pool, row.worker, row.reason,
         row.outcome, row.ttft_ms, row.predicted_hit_tokens, row.cached_tokens]
        for row in found
    ]  # fmt: skip
    disposition = 'attachment; filename="tidemark-requests.csv"'
    content = to_csv(Table(headers, rows))
    return HttpResponse(content, content_type="text/csv; charset=utf-8", headers={"Content-Disposition": disposition})


@requests_viewer
@require_safe
def decision(request: HttpRequest, request_id: str) -> HttpResponse:
    record = find_decision(request_id, tenants=access_of(request).tenants(Capability.REQUESTS_VIEW))
    if record is None:
        raise Http404("No decision of such a request is kept.")
    try:
        # The stored form leaves defaults out; only the contract's type knows that a missing term is 0.
        detail = msgspec.convert(record.detail, DecisionSample)
    except msgspec.ValidationError as error:
        raise Http404("The stored decision cannot be read.") from error
    slug, _, version = detail.template.partition("@")
    return page(
        request,
        "requests",
        "dashboard/decision.html",
        record=record,
        detail=detail,
        card=card_of(detail, others_load=_sees_fleet(request)),
        revisions=in_force_at(record.at, pool=record.pool, namespace=record.namespace),
        template_path=f"/templates/{record.tenant}/{slug}/{version}/" if version.isdigit() else "",
        of_fleet=_sees_fleet(request),
    )


def _found(request: HttpRequest, state: PageState, filters: Filters) -> QuerySet[DecisionRecord]:
    own = access_of(request).tenants(Capability.REQUESTS_VIEW)
    return decisions(state.scope(timezone.now()), filters.wanted, tenants=own)


def _state(request: HttpRequest) -> PageState:
    """Who holds a role in single tenants only sees one of those at a time."""
    state = state_of(request, now=timezone.now())
    return replace(in_own_tenant(state, access_of(request), Capability.REQUESTS_VIEW), page="")


def _filters(request: HttpRequest) -> Filters:
    text = {name: request.GET.get(name, "").strip()[:TEXT_MAX] for name in Filters.__slots__}
    return Filters(
        outcome=text["outcome"],
        reason=text["reason"],
        ttft=text["ttft"] if _number(text["ttft"]) is not None else "",
        off=text["off"] if _number(text["off"]) is not None else "",
    )


def _sees_fleet(request: HttpRequest) -> bool:
    return access_of(request).may(Capability.FLEET_VIEW)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and 0 <= number <= 1e9 else None
