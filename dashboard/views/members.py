"""Who has which role in a tenant: giving, changing and taking it away. Nobody moves more than they hold themselves."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST

from controlplane.errors import ControlError, Invalid
from controlplane.tenants.member_services import grant_role, withdraw_role
from controlplane.tenants.models import Membership
from controlplane.tenants.roles import ROLE_LABELS, Access, Capability, Role
from dashboard.access import access_of, actor_of, requires_in_tenant
from dashboard.forms import posted
from dashboard.scope import state_of

MEMBERS_SHOWN = 200


def members_of(access: Access, tenant: str) -> dict[str, Any]:  # Any: a template's context
    """The tenant's members for a template, None for who may not see them, and the roles that this person may give."""
    if not access.may(Capability.MEMBERS_VIEW, tenant):
        return {"members": None, "roles": []}
    rows = Membership.objects.filter(tenant__slug=tenant).select_related("user").order_by("user__username")
    may = access.may(Capability.MEMBERS_CHANGE, tenant)
    roles = [(role.value, label) for role, label in ROLE_LABELS.items() if may and access.covers(role, tenant)]
    given = {role for role, _ in roles}
    return {
        "members": [(row, row.role in given) for row in rows[:MEMBERS_SHOWN]],
        "roles": roles,
    }


@requires_in_tenant(Capability.MEMBERS_CHANGE)
@require_POST
def member_grant(request: HttpRequest, tenant: str) -> HttpResponse:
    """A role in the tenant for an account that exists, in place of the one it had there."""
    form = posted(request, ("user", "role"))
    try:
        _check_covered(request, tenant, form["role"])
        _check_held(request, tenant, form["user"])
        row = grant_role(actor=actor_of(request), username=form["user"], role=form["role"], tenant=tenant)
    except ControlError as error:
        messages.error(request, error.message)
    else:
        messages.success(request, f"{form['user']} is {row.get_role_display().lower()} of {tenant}.")
    return _to_members(request, tenant)


@requires_in_tenant(Capability.MEMBERS_CHANGE)
@require_POST
def member_withdraw(request: HttpRequest, tenant: str) -> HttpResponse:
    user = posted(request, ("user",))["user"]
    try:
        _check_held(request, tenant, user)
        withdraw_role(actor=actor_of(request), username=user, tenant=tenant)
    except ControlError as error:
        messages.error(request, error.message)
    else:
        messages.success(request, f"{user} has no role in {tenant} any more.")
    return _to_members(request, tenant)


def _check_covered(request: HttpRequest, tenant: str, role: str) -> None:
    """Raises Invalid for an unknown role, PermissionDenied for one that carries more than this person holds."""
    if role not in Role:
        raise Invalid.field("role", f"Role must be one of: {', '.join(Role)}.")
    if not access_of(request).covers(Role(role), tenant):
        raise PermissionDenied(f"You do not hold all that the role {role!r} carries there.")


def _check_held(request: HttpRequest, tenant: str, user: str) -> None:
    """The same for the role that the user has there already."""
    held = Membership.objects.filter(tenant__slug=tenant, user__username=user).values_list("role", flat=True).first()
    if held is not None:
        _check_covered(request, tenant, held)


def _to_members(request: HttpRequest, tenant: str) -> HttpResponseRedirect:
    query = state_of(request, now=timezone.now()).across()
    return HttpResponseRedirect(f"{reverse('tenant', args=[tenant])}?{query}#members")
