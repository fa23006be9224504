"""Tenants: the list, one tenant with all that belongs to it, its name and budget, and suspending it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from controlplane.approvals.models import ChangeRequest
from controlplane.audit.models import AuditEntry
from controlplane.errors import ControlError
from controlplane.fleet.models import PoolModel
from controlplane.namespaces.change_log import about
from controlplane.revocations.selectors import WORDING, recent, seen
from controlplane.snapshots.selectors import last_seen
from controlplane.telemetry.tenant_use import total_use, use_by_namespace
from controlplane.tenants.models import Status, Tenant
from controlplane.tenants.roles import Capability
from controlplane.tenants.services import set_tenant_status, update_tenant
from dashboard import announce
from dashboard.access import NO_TENANT, access_of, actor_of, requires_in_tenant, requires_somewhere
from dashboard.columns import heads
from dashboard.forms import Form, number, posted, reason_of, revision_of, whole
from dashboard.scope import state_of
from dashboard.tenants import COLUMNS, STATUSES, namespace_rows, tenant_rows
from dashboard.views.members import members_of
from dashboard.views.pages import page

PAGE_ROWS = 50
REVOCATIONS_SHOWN = 10
MODELS_SHOWN = 200
CHANGES_SHOWN = 12
SETTINGS = ("name", "prefill_tokens_per_s", "prefill_burst_tokens", "revision")


@requires_somewhere(Capability.TENANTS_VIEW)
@require_safe
def tenants(request: HttpRequest) -> HttpResponse:
    now, access = timezone.now(), access_of(request)
    state = state_of(request, now=now)
    found = tenant_rows(
        access.tenants(Capability.TENANTS_VIEW), state.scope(now), now=now, q=state.q, only=state.only, sort=state.sort
    )
    return page(
        request,
        "tenants",
        "dashboard/tenants.html",
        rows=Paginator(found, PAGE_ROWS).get_page(state.page_number),
        heads=heads(COLUMNS, state),
        statuses=STATUSES,
        paging_query=state.query(page=""),
        may_onboard=access.may(Capability.TENANTS_CHANGE),
        filtered=bool(state.q or state.only),
        models=PoolModel.objects.select_related("pool")[:MODELS_SHOWN] if access.may(Capability.ACCESS_REVOKE) else [],
        **_revocations(access.tenants(Capability.ISOLATION_VIEW)),
    )


@requires_in_tenant(Capability.TENANTS_VIEW)
@require_safe
def tenant_page(request: HttpRequest, tenant: str) -> HttpResponse:
    now, access, row = timezone.now(), access_of(request), _row(tenant)
    # The address names the tenant, whatever the scope in the query says.
    scope = replace(state_of(request, now=now), tenant=tenant, ns="").scope(now)
    uses = use_by_namespace(scope, now=now)
    changes = ChangeRequest.objects.filter(tenant=tenant, state=ChangeRequest.State.PENDING, expires_at__gt=now)
    return page(
        request,
        "tenant",
        "dashboard/tenant.html",
        active="tenants",
        tenant=row,
        namespaces=namespace_rows(row, uses),
        use=total_use(uses.values()) if uses else None,
        span_s=min(scope.span_s, max(1.0, (now - scope.from_).total_seconds())),
        changes=changes,
        entries=AuditEntry.objects.filter(about([tenant]))[:CHANGES_SHOWN] if _sees_audit(request, tenant) else None,
        **members_of(access, tenant),
        **_revocations([tenant] if access.may(Capability.ISOLATION_VIEW, tenant) else []),
        **_levers(request, row),
    )


def _levers(request: HttpRequest, row: Tenant) -> dict[str, Any]:  # Any: a template's context
    """What this person may do to the tenant in the state it is in."""
    access, living = access_of(request), row.status != Status.REVOKED
    return {
        "may_set": living and access.may(Capability.TENANTS_CHANGE, row.slug),
        "may_stop": living and access.may(Capability.TENANTS_REVOKE, row.slug),
        "may_add": living and access.may(Capability.NAMESPACES_CHANGE, row.slug),
    }


def _revocations(tenants: Any) -> dict[str, Any]:  # Any: slugs, or None for all; a template's context
    now = timezone.now()
    found = recent(tenants, most=REVOCATIONS_SHOWN) if tenants is None or tenants else []
    return {"revocations": seen(found, last_seen(now), now) if found else [], "wording": WORDING}


def _sees_audit(request: HttpRequest, tenant: str) -> bool:
    return access_of(request).may(Capability.AUDIT_VIEW, tenant)


@requires_in_tenant(Capability.TENANTS_CHANGE)
@require_http_methods(["GET", "HEAD", "POST"])
def tenant_settings(request: HttpRequest, tenant: str) -> HttpResponse:
    """Name and budget; the budget is for who may change limits."""
    row, may_limit = _row(tenant), access_of(request).may(Capability.LIMITS_CHANGE)
    if request.method != "POST":
        return _settings_page(request, row, Form(_stored(row)), may_limit)
    form = Form(posted(request, SETTINGS))
    try:
        _save(request, row, form, may_limit)
    except ControlError as error:
        return _settings_page(request, row, form.refused(error), may_limit, status=error.status)
    messages.success(request, f"{tenant} is changed.")
    return _to_tenant(request, tenant)


def _save(request: HttpRequest, row: Tenant, form: Form, may_limit: bool) -> None:
    limits = {
        "prefill_tokens_per_s": number(form.values["prefill_tokens_per_s"], "prefill_tokens_per_s"),
        "prefill_burst_tokens": whole(form.values["prefill_burst_tokens"], "prefill_burst_tokens"),
    }
    settings: Any = {"name": form.values["name"], **(limits if may_limit else {})}  # Any: of a TypedDict
    update_tenant(
        actor=actor_of(request), tenant=row.slug, if_revision=revision_of(form.values["revision"]), **settings
    )


def _stored(row: Tenant) -> dict[str, str]:
    rate, burst = row.prefill_tokens_per_s, row.prefill_burst_tokens
    return {
        "name": row.name,
        "prefill_tokens_per_s": "" if rate is None else f"{rate:g}",
        "prefill_burst_tokens": "" if burst is None else str(burst),
        "revision": str(row.revision),
    }


def _settings_page(
    request: HttpRequest, row: Tenant, form: Form, may_limit: bool, *, status: int = 200
) -> HttpResponse:
    return page(
        request, "tenant-settings", "dashboard/tenant_settings.html", active="tenants", status=status, tenant=row,
        form=form, may_limit=may_limit,
    )  # fmt: skip


@requires_in_tenant(Capability.TENANTS_REVOKE)
@require_http_methods(["GET", "HEAD", "POST"])
def tenant_status(request: HttpRequest, tenant: str, wanted: str) -> HttpResponse:
    """Suspends or resumes; GET says what that means. Revoking has a page of its own."""
    row = _row(tenant)
    if wanted not in (Status.ACTIVE, Status.SUSPENDED):
        raise Http404("There is no such state.")
    if request.method != "POST":
        return page(
            request, "tenant-status", "dashboard/confirm_status.html", active="tenants", tenant=row, wanted=wanted,
            subject=tenant, noun="tenant", back=reverse("tenant", args=[tenant]),
        )  # fmt: skip
    try:
        set_tenant_status(actor=actor_of(request), tenant=tenant, status=wanted, reason=reason_of(request))
    except ControlError as error:
        messages.error(request, error.message)
    else:
        announce.changed("tenants")
        messages.success(request, f"{tenant} is {'suspended' if wanted == Status.SUSPENDED else 'active again'}.")
    return _to_tenant(request, tenant)


def _row(tenant: str) -> Tenant:
    row = Tenant.objects.filter(slug=tenant).first()
    if row is None:
        raise Http404(NO_TENANT)
    return row


def _to_tenant(request: HttpRequest, tenant: str) -> HttpResponseRedirect:
    query = state_of(request, now=timezone.now()).across()
    return HttpResponseRedirect(f"{reverse('tenant', args=[tenant])}?{query}")
