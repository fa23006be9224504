"""API keys of a namespace: made and rotated here, their text shown this once; revoking has a page of its own."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from controlplane.errors import ControlError, Invalid
from controlplane.fleet.models import PoolModel
from controlplane.namespaces.key_services import IssuedKey, issue_key, rotate_key
from controlplane.namespaces.models import ApiKey, CacheNamespace
from controlplane.tenants.roles import Capability
from dashboard.access import access_of, actor_of, requires_in_tenant
from dashboard.forms import Form, posted, reason_of
from dashboard.router_address import router_address
from dashboard.views.namespaces import find
from dashboard.views.pages import page

EXPIRIES = {"": "never", "7": "in 7 days", "30": "in 30 days", "90": "in 90 days", "365": "in a year"}
OVERLAPS = {"0": "at once", "3600": "in an hour", "86400": "in a day", "604800": "in a week", "2592000": "in 30 days"}
OVERLAP_DEFAULT = "86400"


@requires_in_tenant(Capability.KEYS_CHANGE)
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def key_add(request: HttpRequest, tenant: str, slug: str) -> HttpResponse:
    row = find(tenant, slug)
    if request.method != "POST":
        return _add_page(request, row, Form({"name": "", "expires": "90"}))
    form = Form(posted(request, ("name", "expires", "explain")))
    try:
        issued = _issue(request, row, form.values)
    except ControlError as error:
        return _add_page(request, row, form.refused(error, names={"expires_at": "expires"}), status=error.status)
    return _issued_page(request, row, issued)


def _issue(request: HttpRequest, row: CacheNamespace, values: Any) -> IssuedKey:  # Any: of a form
    if values["expires"] not in EXPIRIES:
        raise Invalid.field("expires", "Choose when it expires.")
    scopes = [ApiKey.KeyScope.INFERENCE]
    if values["explain"]:
        scopes.append(ApiKey.KeyScope.EXPLAIN)
    _check_scopes(request, scopes)
    days = values["expires"]
    return issue_key(
        actor=actor_of(request),
        namespace=row.namespace_id,
        name=values["name"],
        expires_at=timezone.now() + timedelta(days=int(days)) if days else None,
        scopes=scopes,
    )


def _check_scopes(request: HttpRequest, scopes: list[Any]) -> None:  # Any: values of KeyScope as stored
    """`explain` tells where requests go: for who may see that in the whole fleet (S6). Raises PermissionDenied."""
    if ApiKey.KeyScope.EXPLAIN in scopes and not may_explain(request):
        raise PermissionDenied("A key that explains is made by who may see recorded requests of the whole fleet.")


def may_explain(request: HttpRequest) -> bool:
    return access_of(request).may(Capability.REQUESTS_VIEW)


def _add_page(request: HttpRequest, row: CacheNamespace, form: Form, *, status: int = 200) -> HttpResponse:
    return page(
        request, "key-add", "dashboard/key_add.html", active="tenants", status=status, namespace=row, form=form,
        expiries=EXPIRIES.items(), may_explain=may_explain(request),
    )  # fmt: skip


@requires_in_tenant(Capability.KEYS_CHANGE)
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def key_rotate(request: HttpRequest, tenant: str, slug: str, key_id: str) -> HttpResponse:
    """A successor; the key itself goes on for the overlap that is chosen."""
    row = find(tenant, slug)
    key = row.keys.filter(key_id=key_id).first()
    if key is None:
        raise Http404("There is no such key.")
    if request.method != "POST":
        return _rotate_page(request, row, key, Form({"overlap": OVERLAP_DEFAULT}))
    form = Form(posted(request, ("overlap",)))
    try:
        issued = _rotate(request, key, form.values["overlap"])
    except ControlError as error:
        return _rotate_page(request, row, key, form.refused(error), status=error.status)
    return _issued_page(request, row, issued, rotated=ApiKey.objects.get(pk=key.pk))


def _rotate(request: HttpRequest, key: ApiKey, overlap: str) -> IssuedKey:
    if overlap not in OVERLAPS:
        raise Invalid.field("overlap", "Choose when the key ends.")
    _check_scopes(request, key.scopes)
    return rotate_key(
        actor=actor_of(request), key_id=key.key_id, overlap_s=float(overlap), reason=reason_of(request)
    )  # fmt: skip


def _rotate_page(
    request: HttpRequest, row: CacheNamespace, key: ApiKey, form: Form, *, status: int = 200
) -> HttpResponse:
    return page(
        request, "key-rotate", "dashboard/key_rotate.html", active="tenants", status=status, namespace=row, key=key,
        form=form, overlaps=OVERLAPS.items(),
    )  # fmt: skip


def _issued_page(
    request: HttpRequest, row: CacheNamespace, issued: IssuedKey, *, rotated: ApiKey | None = None
) -> HttpResponse:
    """The one answer that holds the key."""
    return page(
        request, "key-issued", "dashboard/key_issued.html", active="tenants", namespace=row, issued=issued,
        rotated=rotated, router_url=router_address(request), model=example_model(row),
    )  # fmt: skip


def example_model(row: CacheNamespace) -> str:
    """A model that the namespace may ask for, for an example; "" where none is served yet."""
    served = PoolModel.objects.order_by("name").values_list("name", flat=True)
    allowed = served.filter(name__in=row.model_names) if row.model_names else served
    return allowed.first() or ""
