"""One's own account: what one may do, the second factor, personal API tokens."""

from __future__ import annotations

from datetime import timedelta

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.errors import ControlError, Invalid
from controlplane.tenants.models import PersonalToken
from controlplane.tenants.roles import Capability
from controlplane.tenants.token_services import issue_token, revoke_token
from dashboard.access import access_of, actor_of, signed_in
from dashboard.views.pages import page

TOKENS_SHOWN = 50
DAYS = ("7", "30", "90", "365")


@login_required
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def account(request: HttpRequest) -> HttpResponse:
    """POST makes a token; its text is in the answer, this once."""
    if request.method != "POST":
        return _page(request)
    try:
        issued = _issue(request)
    except ControlError as error:
        messages.error(request, error.message)
        return _page(request, status=error.status)
    return _page(request, issued=issued)


@login_required
@require_POST
def token_revoke(request: HttpRequest, token_id: str) -> HttpResponse:
    try:
        revoke_token(actor=actor_of(request), user=signed_in(request), token_id=token_id)
    except ControlError as error:
        messages.error(request, error.message)
    else:
        messages.success(request, f"The token tmp_{token_id}_… is revoked.")
    return HttpResponseRedirect("/account/")


def _issue(request: HttpRequest) -> str:
    """The text of a fresh token. Raises Invalid with what to mend."""
    days, name = request.POST.get("days", ""), request.POST.get("name", "").strip()
    if days not in DAYS or not name:
        raise Invalid("Give the token a name and a lifetime.")
    issued = issue_token(
        actor=actor_of(request),
        user=signed_in(request),
        name=name[:200],
        scopes=request.POST.getlist("scopes"),
        expires_at=timezone.now() + timedelta(days=int(days)),
    )
    return issued.text


def _page(request: HttpRequest, *, issued: str = "", status: int = 200) -> HttpResponse:
    access = access_of(request)
    return page(
        request,
        "account",
        "dashboard/account.html",
        panels=False,
        status=status,
        issued=issued,
        scopes=[item.value for item in Capability if access.may_somewhere(item)],
        everywhere=sorted(access.fleet),
        in_tenants=[(slug, sorted(held)) for slug, held in sorted(access.by_tenant.items())],
        tokens=PersonalToken.objects.filter(user=signed_in(request))[:TOKENS_SHOWN],
        days=DAYS,
    )
