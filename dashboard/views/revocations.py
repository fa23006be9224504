"""Revoking a key, namespace, tenant or model revision: what it takes away, the typed name, then each router's word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from controlplane.errors import Conflict, ControlError, Invalid
from controlplane.fleet.services import revoke_model
from controlplane.namespaces.key_services import revoke_key
from controlplane.namespaces.services import set_namespace_status
from controlplane.revocations.models import Revocation
from controlplane.revocations.selectors import WORDING
from controlplane.tenants.models import Status
from controlplane.tenants.roles import Capability
from controlplane.tenants.services import set_tenant_status
from dashboard import announce
from dashboard.access import NO_TENANT, access_of, actor_of, check_in_tenant, requires_somewhere
from dashboard.blast import Blast, blast_of
from dashboard.forms import Form, posted
from dashboard.scope import state_of
from dashboard.views.pages import page

KINDS = dict(Revocation.Kind.choices)
NEEDED = {
    "key": Capability.ACCESS_REVOKE,
    "namespace": Capability.ACCESS_REVOKE,
    "tenant": Capability.TENANTS_REVOKE,
    "model": Capability.ACCESS_REVOKE,
}
"""In the tenant that it belongs to; for a model in the whole fleet."""


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def revoke(request: HttpRequest, kind: str, subject: str) -> HttpResponse:
    """GET shows what it takes away; POST with the name typed does it, and leads to the routers' acknowledgements."""
    blast = _allowed(request, kind, subject)
    if request.method != "POST":
        return _ask(request, blast, Form())
    form = Form(posted(request, ("typed", "reason")))
    try:
        _check(blast, form.values["typed"])
        _REVOKE[kind](actor_of(request), subject, form.values["reason"])
    except ControlError as error:
        return _ask(request, blast, form.refused(error), status=error.status)
    announce.changed("revocations")
    made = Revocation.objects.filter(kind=kind, subject=subject).order_by("-epoch").first()
    if made is None:
        raise Http404("It was revoked before revocations were kept.")
    query = state_of(request, now=timezone.now()).across()
    return HttpResponseRedirect(f"{reverse('revocation', args=[made.epoch])}?{query}")


def _allowed(request: HttpRequest, kind: str, subject: str) -> Blast:
    """What would be revoked, for who may do it. Http404 for what is absent or another's, and nobody learns which."""
    access = access_of(request)
    if not access.may_somewhere(Capability.ACCESS_REVOKE):
        raise PermissionDenied("Your role does not allow this (access.revoke). Ask an administrator.")
    blast = blast_of(kind, subject, now=timezone.now())
    if blast is None:
        raise Http404(NO_TENANT)
    if blast.tenant:
        check_in_tenant(access, NEEDED[kind], blast.tenant)
    elif not access.may(NEEDED[kind]):
        raise Http404(NO_TENANT)
    return blast


def _check(blast: Blast, typed: str) -> None:
    if blast.revoked:
        raise Conflict("It is revoked already.")
    if typed != blast.typed:
        raise Invalid.field("typed", f"Type {blast.typed} to confirm.")


def _ask(request: HttpRequest, blast: Blast, form: Form, *, status: int = 200) -> HttpResponse:
    return page(
        request, "revoke", "dashboard/revoke.html", active="tenants", status=status, blast=blast, form=form,
        noun=KINDS[blast.kind].lower() if blast.kind != "key" else "API key", wording=WORDING, back=_back(blast),
    )  # fmt: skip


def _back(blast: Blast) -> str:
    if blast.kind == "model":
        return reverse("workers")
    if blast.kind == "tenant":
        return reverse("tenant", args=[blast.subject])
    return reverse("namespace", args=blast.namespaces[0].split("/"))


@requires_somewhere(Capability.ISOLATION_VIEW)
@require_safe
def revocation(request: HttpRequest, epoch: int) -> HttpResponse:
    """One revocation and the routers' acknowledgements, live."""
    row = _visible(request, epoch)
    return page(
        request, "revocation", "dashboard/revocation.html", active="tenants", item=str(epoch), row=row, wording=WORDING
    )


def _visible(request: HttpRequest, epoch: int) -> Revocation:
    mine = access_of(request).tenants(Capability.ISOLATION_VIEW)
    rows = Revocation.objects.filter(epoch=epoch)
    row = (rows if mine is None else rows.filter(tenant__in=mine)).first()
    if row is None:
        raise Http404("There is no such revocation.")
    return row


def _tenant(actor: str, subject: str, reason: str) -> object:
    return set_tenant_status(actor=actor, tenant=subject, status=Status.REVOKED, reason=reason)


def _namespace(actor: str, subject: str, reason: str) -> object:
    return set_namespace_status(actor=actor, namespace=subject, status=Status.REVOKED, reason=reason)


def _key(actor: str, subject: str, reason: str) -> object:
    return revoke_key(actor=actor, key_id=subject, reason=reason)


def _model(actor: str, subject: str, reason: str) -> object:
    pool, _, model = subject.partition(":")
    return revoke_model(actor=actor, pool=pool, model=model, reason=reason)


_REVOKE: dict[str, Callable[[str, str, str], Any]] = {
    "key": _key,
    "namespace": _namespace,
    "tenant": _tenant,
    "model": _model,
}
