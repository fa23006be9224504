"""Isolation: canaries, audits, findings, violations of the range, who shares, and what waits for a second person."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from controlplane.approvals.models import ChangeRequest
from controlplane.approvals.services import approve, reject
from controlplane.errors import ControlError
from controlplane.fleet.models import Finding
from controlplane.isolation.audit_services import request_audit
from controlplane.isolation.canary_selectors import recent_audits
from controlplane.isolation.canary_services import run_by_hand
from controlplane.isolation.models import IsolationViolation
from controlplane.isolation.selectors import violation_rows
from controlplane.isolation.services import acknowledge_finding, acknowledge_violation
from controlplane.namespaces.selectors import shared_domains
from controlplane.tenants.roles import Capability
from dashboard import announce
from dashboard.access import access_of, actor_of, requires, requires_somewhere
from dashboard.live_pages import in_own_tenant
from dashboard.scope import PageState, state_of
from dashboard.views.pages import page

PAGE_ROWS = 50
FINDINGS_SHOWN = 100
CHANGES_SHOWN = 50
AUDITS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Filters:
    """Of violations, as typed; "" = any."""

    open: str = ""
    """`1` = nobody has acknowledged it."""
    severity: str = ""
    kind: str = ""
    evidence: str = ""
    """Keyed hash: all violations of one prompt."""
    request_id: str = ""

    @classmethod
    def typed(cls, query: Mapping[str, str]) -> Filters:
        return cls(
            open="1" if query.get("open") == "1" else "",
            severity=_known(query.get("severity", ""), IsolationViolation.Severity.values),
            kind=_known(query.get("kind", ""), IsolationViolation.Kind.values),
            evidence=query.get("evidence", "").strip()[:32],
            request_id=query.get("request_id", "").strip()[:64],
        )

    @property
    def query(self) -> str:
        pairs = {name: getattr(self, name) for name in self.__slots__ if getattr(self, name)}
        return f"&{urlencode(pairs)}" if pairs else ""

    def narrow(self, rows: QuerySet[IsolationViolation]) -> QuerySet[IsolationViolation]:
        if self.open:
            rows = rows.filter(acknowledged_at=None)
        for name in ("severity", "kind", "request_id"):
            if getattr(self, name):
                rows = rows.filter(**{name: getattr(self, name)})
        return rows.filter(evidence__startswith=self.evidence) if self.evidence else rows


def _known(text: str, values: Sequence[str]) -> str:
    return text if text in values else ""


@requires_somewhere(Capability.ISOLATION_VIEW)
@require_safe
def isolation(request: HttpRequest) -> HttpResponse:
    """The whole fleet's, or the violations of one's own tenant with the coverage of its traffic."""
    now = timezone.now()
    access = access_of(request)
    state = in_own_tenant(state_of(request, now=now), access, Capability.ISOLATION_VIEW)
    filters = Filters.typed(request.GET)
    begin = (state.page_number - 1) * PAGE_ROWS
    found = list(filters.narrow(violation_rows(state.scope(now)))[begin : begin + PAGE_ROWS + 1])
    whole = access.may(Capability.ISOLATION_VIEW)
    return page(
        request,
        "isolation",
        "dashboard/isolation.html",
        rows=found[:PAGE_ROWS],
        number=state.page_number,
        has_more=len(found) > PAGE_ROWS,
        filters=filters,
        extra_query=filters.query,
        export_query=_export_query(state, filters, now),
        severities=IsolationViolation.Severity.choices,
        kinds=IsolationViolation.Kind.choices,
        whole=whole,
        may_acknowledge=access.may(Capability.ISOLATION_CHANGE, state.tenant),
        findings=_findings(state.tenant, whole=whole),
        **(_of_the_fleet(request, now) if whole else {}),
    )


def _findings(tenant: str, *, whole: bool) -> list[Finding]:
    """Open ones; for a tenant's members those of its namespaces."""
    found = Finding.objects.filter(resolved_at=None).order_by("-last_seen")
    return list((found if whole else found.filter(subject__startswith=f"{tenant}/"))[:FINDINGS_SHOWN])


def _of_the_fleet(request: HttpRequest, now: datetime) -> dict[str, Any]:
    return {
        "may_approve": access_of(request).may(Capability.CHANGES_APPROVE),
        "actor": actor_of(request),
        "domains": shared_domains(),
        "changes": ChangeRequest.objects.filter(state=ChangeRequest.State.PENDING, expires_at__gt=now)[:CHANGES_SHOWN],
        "audits": recent_audits(limit=AUDITS_SHOWN),
    }


def _export_query(state: PageState, filters: Filters, now: datetime) -> str:
    """What is shown, for the export: evidence leaves as keyed hashes alone."""
    scope = state.scope(now)
    pairs = {"since": scope.from_.isoformat(), "until": scope.to.isoformat()}
    names = ("tenant", "namespace", "pool", "worker", "model")
    pairs |= {name: getattr(scope, name) for name in names if getattr(scope, name)}
    pairs |= {name: getattr(filters, name) for name in ("severity", "kind", "evidence") if getattr(filters, name)}
    return urlencode(pairs | ({"acknowledged": "false"} if filters.open else {}))


@requires_somewhere(Capability.ISOLATION_CHANGE)
@require_POST
def acknowledge(request: HttpRequest, violation_id: int) -> HttpResponse:
    """Notes who looked at a violation and what they concluded; another tenant's looks absent."""
    tenant = IsolationViolation.objects.filter(pk=violation_id).values_list("tenant", flat=True).first()
    if tenant is None or not access_of(request).may(Capability.ISOLATION_CHANGE, tenant):
        raise Http404("There is no such violation.")

    def change(actor: str, reason: str) -> str:
        row = acknowledge_violation(violation_id, actor=actor, acknowledgement=reason)
        return f"The violation of {row.namespace} on {row.worker} is acknowledged."

    return _told(request, change)


@requires(Capability.ISOLATION_CHANGE)
@require_POST
def acknowledge_open_finding(request: HttpRequest, finding_id: int) -> HttpResponse:
    """Notes who looked at a finding and why it may wait; it stays open."""

    def change(actor: str, reason: str) -> str:
        row = acknowledge_finding(finding_id, actor=actor, acknowledgement=reason)
        return f"The finding {row.kind} of {row.subject} is acknowledged."

    return _told(request, change)


@requires(Capability.CHANGES_APPROVE)
@require_POST
def decide_change(request: HttpRequest, change_id: int) -> HttpResponse:
    """Approves, rejects or withdraws what somebody proposed; the service knows who may."""

    def change(actor: str, decision: str) -> str:
        decide = approve if request.POST.get("verdict") == "approve" else reject
        row = decide(change_id, actor=actor, decision=decision)
        return f"{row.kind} of {row.subject}: {row.get_state_display()}."

    return _told(request, change, field="decision")


@requires(Capability.ISOLATION_CHANGE)
@require_POST
def check_worker(request: HttpRequest) -> HttpResponse:
    """Canaries at once (up to 30 s), or a TTFT audit in the background."""

    def check(actor: str, worker: str) -> str:
        if request.POST.get("check") == "ttft":
            request_audit(worker, actor=actor)
            return f"{worker} is timed within a minute; it takes some."
        results = run_by_hand(worker, actor=actor)
        return f"{worker}: " + ", ".join(f"{row.endpoint} {row.get_verdict_display().lower()}" for row in results) + "."

    return _told(request, check, field="worker")


def _told(request: HttpRequest, change: Callable[[str, str], str], *, field: str = "reason") -> HttpResponse:
    """`change` takes the actor and a field of the form, and gives the words of success."""
    try:
        words = change(actor_of(request), request.POST.get(field, ""))
    except ControlError as error:
        messages.error(request, error.message)
    else:
        announce.changed("isolation")
        messages.success(request, words)
    return HttpResponseRedirect(f"/isolation/?{state_of(request, now=timezone.now()).query()}")
