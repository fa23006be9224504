"""Who may call what. Default deny: a view says what it needs, or nobody may call it.

    class NamespaceDetail(ApiView):
        needs = Needs(read=Capability.NAMESPACES_VIEW, change=Capability.NAMESPACES_CHANGE)
        place = tenant_in("namespace")        # which tenant an address belongs to; the whole fleet where absent

    class NamespaceList(ApiView):
        needs = …
        rows_of = "tenant__slug"              # from a row to its tenant: `listed` shows the caller's tenants only

A tenant named in a body is checked in the view: `self.require_in(body["tenant"])`. Objects that the caller may not
see and objects that do not exist get the same answer (S12).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from controlplane.api.authentication import RouterPrincipal
from controlplane.errors import Forbidden, NotFound
from controlplane.tenants.models import User
from controlplane.tenants.roles import NO_ACCESS, Access, Capability

SIGNED_IN: Literal["signed-in"] = "signed-in"
"""Needed of everybody with an account, whatever their role: the schema, one's own tokens."""

UNSEEN = "There is no such object, or it is not yours to see."

Need = Capability | Literal["signed-in"] | None


@dataclass(frozen=True, slots=True)
class Needs:
    """Capability that reading and changing ask for; None = nobody may. `read` also decides who learns of an object."""

    read: Need = None
    change: Need = None

    def of(self, method: str | None) -> Need:
        return self.read if method in SAFE_METHODS else self.change


@dataclass(frozen=True, slots=True)
class Place:
    """Where the object of an address belongs."""

    tenant_of: Callable[[Mapping[str, Any]], str | None]
    """The address's arguments → the tenant's slug; "" = the whole fleet; None = there is no such object."""


WHOLE_FLEET = Place(lambda kwargs: "")


def tenant_in(argument: str) -> Place:
    """The place of an address whose argument is a tenant's slug, or begins with it: `acme`, `acme/support`."""
    return Place(lambda kwargs: str(kwargs[argument]).partition("/")[0])


class CallerMay(BasePermission):
    """Compares what the view needs with what the caller holds, at the place of the addressed object."""

    message = "Your role does not allow this. An administrator can give you one that does."

    def has_permission(self, request: Request, view: APIView) -> bool:
        if isinstance(request.user, RouterPrincipal):
            return bool(getattr(view, "open_to_routers", False))
        if not isinstance(request.user, User):
            return False
        needs: Needs = getattr(view, "needs", Needs())
        needed = needs.of(request.method)
        if needed is None or needed == SIGNED_IN:
            return needed == SIGNED_IN
        access = access_of(request)
        if getattr(view, "rows_of", ""):
            return access.may_somewhere(needed)
        if not (access.may_somewhere(needed) or _sees_some(access, needs)):
            return False
        place: Place = getattr(view, "place", WHOLE_FLEET)
        return _may_at(access, needs, needed, place.tenant_of(view.kwargs))


def access_of(request: Request) -> Access:
    """What the caller holds: the user's memberships, within the scopes of the token where one was shown."""
    if not isinstance(request.user, User):
        return NO_ACCESS
    scopes = getattr(request.auth, "scopes", None)
    return request.user.access if scopes is None else request.user.access.limited_to(scopes)


def require(access: Access, needs: Needs, needed: Capability, tenant: str) -> None:
    """Raises NotFound where the caller may not even see the tenant, Forbidden where they may not do this in it."""
    if not _may_at(access, needs, needed, tenant):
        raise Forbidden(CallerMay.message)


def _may_at(access: Access, needs: Needs, needed: Capability, tenant: str | None) -> bool:
    if access.may(needed, tenant or ""):
        return True
    sees = isinstance(needs.read, Capability) and access.may(needs.read, tenant or "")
    if tenant == "" or sees:
        return False
    raise NotFound(UNSEEN)


def _sees_some(access: Access, needs: Needs) -> bool:
    return isinstance(needs.read, Capability) and access.may_somewhere(needs.read)
