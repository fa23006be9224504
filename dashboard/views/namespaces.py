"""One cache namespace: its settings, its keys, who shares its cache, another salt, suspending it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from controlplane.approvals.models import ChangeRequest
from controlplane.audit.models import AuditEntry
from controlplane.errors import ControlError
from controlplane.fleet.models import PoolModel, WorkerPool
from controlplane.namespaces.change_log import about_namespace
from controlplane.namespaces.models import ApiKey, CacheNamespace
from controlplane.namespaces.services import (
    create_namespace,
    rotate_generation,
    set_namespace_status,
    update_namespace,
)
from controlplane.namespaces.sharing_services import make_private, propose_sharing
from controlplane.telemetry.tenant_use import use_by_namespace
from controlplane.tenants.models import Status, Tenant
from controlplane.tenants.roles import Capability
from dashboard import announce
from dashboard.access import NO_TENANT, access_of, actor_of, requires_in_tenant
from dashboard.forms import Form, posted, reason_of, revision_of
from dashboard.namespace_form import FIELDS, OPERATORS_FIELDS, choices, settings_of, stored
from dashboard.scope import state_of
from dashboard.views.pages import page

KEYS_SHOWN = 200
CHANGES_SHOWN = 12


@requires_in_tenant(Capability.NAMESPACES_VIEW)
@require_safe
def namespace_page(request: HttpRequest, tenant: str, slug: str) -> HttpResponse:
    now, access, row = timezone.now(), access_of(request), find(tenant, slug)
    scope = replace(state_of(request, now=now), tenant=tenant, ns=row.namespace_id).scope(now)
    return page(
        request,
        "namespace",
        "dashboard/namespace.html",
        active="tenants",
        namespace=row,
        use=use_by_namespace(scope, now=now).get(row.namespace_id),
        keys=_keys(row) if access.may(Capability.KEYS_VIEW, tenant) else None,
        pools=list(WorkerPool.objects.values_list("slug", flat=True)[:2]) if access.may(Capability.FLEET_VIEW) else [],
        changes=_pending(row),
        entries=_entries(row) if access.may(Capability.AUDIT_VIEW, tenant) else None,
        **_levers(request, row),
    )


def _levers(request: HttpRequest, row: CacheNamespace) -> dict[str, Any]:  # Any: a template's context
    access, tenant = access_of(request), row.tenant.slug
    living = Status.REVOKED not in (row.status, row.tenant.status)
    return {
        "may_set": living and access.may(Capability.NAMESPACES_CHANGE, tenant),
        "may_issue": living and access.may(Capability.KEYS_CHANGE, tenant),
        "may_revoke": access.may(Capability.ACCESS_REVOKE, tenant),
        "may_stop": living and access.may(Capability.ACCESS_REVOKE, tenant),
        "may_share": living and access.may(Capability.SHARING_CHANGE, tenant),
    }


def _keys(row: CacheNamespace) -> list[ApiKey]:
    """Active ones first, then the youngest."""
    return list(row.keys.order_by("status", "-created_at")[:KEYS_SHOWN])


def _pending(row: CacheNamespace) -> list[ChangeRequest]:
    waiting = ChangeRequest.objects.filter(state=ChangeRequest.State.PENDING, expires_at__gt=timezone.now())
    return list(waiting.filter(subject=row.namespace_id))


def _entries(row: CacheNamespace) -> list[AuditEntry]:
    return list(AuditEntry.objects.filter(about_namespace(row))[:CHANGES_SHOWN])


@requires_in_tenant(Capability.NAMESPACES_CHANGE)
@require_http_methods(["GET", "HEAD", "POST"])
def namespace_add(request: HttpRequest, tenant: str) -> HttpResponse:
    owner = Tenant.objects.filter(slug=tenant).first()
    if owner is None:
        raise Http404(NO_TENANT)
    if request.method != "POST":
        return _form_page(request, owner, None, Form({"on_stale": "serve", "unknown_fields": "drop", "priority": "0"}))
    form = _posted(request, "slug")
    try:
        row = create_namespace(
            actor=actor_of(request), tenant=tenant, slug=form.values["slug"], **settings_of(form, _may_limit(request))
        )
    except ControlError as error:
        return _form_page(request, owner, None, form.refused(error), status=error.status)
    messages.success(request, f"{row.namespace_id} is there, private and without a key. Issue one below.")
    return to_namespace(request, row.namespace_id)


@requires_in_tenant(Capability.NAMESPACES_CHANGE)
@require_http_methods(["GET", "HEAD", "POST"])
def namespace_settings(request: HttpRequest, tenant: str, slug: str) -> HttpResponse:
    row = find(tenant, slug)
    if request.method != "POST":
        return _form_page(request, row.tenant, row, Form(stored(row)))
    form = Form(
        posted(request, ("revision", *FIELDS)) | {"model_names": "\n".join(request.POST.getlist("model_names"))}
    )
    try:
        update_namespace(
            actor=actor_of(request), namespace=row.namespace_id, if_revision=revision_of(form.values["revision"]),
            **settings_of(form, _may_limit(request)),
        )  # fmt: skip
    except ControlError as error:
        return _form_page(request, row.tenant, row, form.refused(error), status=error.status)
    announce.changed("namespaces")
    messages.success(request, f"{row.namespace_id} is changed.")
    return to_namespace(request, row.namespace_id)


def _posted(request: HttpRequest, *names: str) -> Form:
    models = "\n".join(request.POST.getlist("model_names"))
    return Form(posted(request, (*names, *FIELDS)) | {"model_names": models})


def _may_limit(request: HttpRequest) -> bool:
    return access_of(request).may(Capability.LIMITS_CHANGE)


def _form_page(
    request: HttpRequest, tenant: Tenant, row: CacheNamespace | None, form: Form, *, status: int = 200
) -> HttpResponse:
    chosen = [name for name in form.values.get("model_names", "").split("\n") if name]
    served = list(PoolModel.objects.order_by("name").values_list("name", flat=True))
    return page(
        request,
        "namespace-settings",
        "dashboard/namespace_settings.html",
        active="tenants",
        status=status,
        tenant=tenant,
        namespace=row,
        form=form,
        models=[(name, name in chosen) for name in sorted({*served, *chosen})],
        may_limit=_may_limit(request),
        operators_fields=OPERATORS_FIELDS,
        **choices(),
    )


@requires_in_tenant(Capability.ACCESS_REVOKE)
@require_http_methods(["GET", "HEAD", "POST"])
def namespace_rotate(request: HttpRequest, tenant: str, slug: str) -> HttpResponse:
    """Another salt: what is cached under the old one cannot be reached any more. GET says what that costs."""
    row = find(tenant, slug)
    if request.method != "POST":
        return page(request, "namespace-rotate", "dashboard/namespace_rotate.html", active="tenants", namespace=row)
    try:
        changed = rotate_generation(actor=actor_of(request), namespace=row.namespace_id, reason=reason_of(request))
    except ControlError as error:
        messages.error(request, error.message)
    else:
        announce.changed("namespaces")
        messages.success(request, f"{row.namespace_id} is in generation {changed.generation}: its cache begins cold.")
    return to_namespace(request, row.namespace_id)


@requires_in_tenant(Capability.ACCESS_REVOKE)
@require_http_methods(["GET", "HEAD", "POST"])
def namespace_status(request: HttpRequest, tenant: str, slug: str, wanted: str) -> HttpResponse:
    row = find(tenant, slug)
    if wanted not in (Status.ACTIVE, Status.SUSPENDED):
        raise Http404("There is no such state.")
    if request.method != "POST":
        return page(
            request, "namespace-status", "dashboard/confirm_status.html", active="tenants", wanted=wanted,
            subject=row.namespace_id, noun="namespace", back=reverse("namespace", args=[tenant, slug]),
        )  # fmt: skip
    try:
        set_namespace_status(
            actor=actor_of(request), namespace=row.namespace_id, status=wanted, reason=reason_of(request)
        )
    except ControlError as error:
        messages.error(request, error.message)
    else:
        announce.changed("namespaces")
        told = "suspended" if wanted == Status.SUSPENDED else "active again"
        messages.success(request, f"{row.namespace_id} is {told}.")
    return to_namespace(request, row.namespace_id)


@requires_in_tenant(Capability.SHARING_CHANGE)
@require_http_methods(["GET", "HEAD", "POST"])
def namespace_sharing(request: HttpRequest, tenant: str, slug: str) -> HttpResponse:
    """Proposes whom it shares its cache with; ending it holds at once."""
    row = find(tenant, slug)
    if request.method != "POST":
        return _sharing_page(request, row, Form({"isolation": "project"}))
    form = Form(posted(request, ("isolation", "project", "trust_group", "reason")))
    try:
        told = _share(request, row, form.values)
    except ControlError as error:
        return _sharing_page(request, row, form.refused(error), status=error.status)
    announce.changed("namespaces")
    messages.success(request, told)
    return to_namespace(request, row.namespace_id)


def _share(request: HttpRequest, row: CacheNamespace, values: Any) -> str:  # Any: of a form
    """What happened, in words."""
    if values["isolation"] == CacheNamespace.Isolation.PRIVATE:
        make_private(actor=actor_of(request), namespace=row.namespace_id, reason=values["reason"])
        return f"{row.namespace_id} is private."
    propose_sharing(
        actor=actor_of(request), namespace=row.namespace_id, isolation=values["isolation"],
        project=values["project"], trust_group=values["trust_group"], reason=values["reason"],
    )  # fmt: skip
    return "It is proposed, and waits for another person's approval (Isolation)."


def _sharing_page(request: HttpRequest, row: CacheNamespace, form: Form, *, status: int = 200) -> HttpResponse:
    return page(
        request, "namespace-sharing", "dashboard/namespace_sharing.html", active="tenants", status=status,
        namespace=row, form=form, isolations=CacheNamespace.Isolation.choices,
    )  # fmt: skip


def find(tenant: str, slug: str) -> CacheNamespace:
    rows = CacheNamespace.objects.select_related("tenant", "trust_group")
    row = rows.filter(tenant__slug=tenant, slug=slug).first()
    if row is None:
        raise Http404("There is no such namespace.")
    return row


def to_namespace(request: HttpRequest, namespace_id: str) -> HttpResponseRedirect:
    query = state_of(request, now=timezone.now()).across()
    return HttpResponseRedirect(f"{reverse('namespace', args=namespace_id.split('/'))}?{query}")
