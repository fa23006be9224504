"""Who may see a page and who may change what it shows."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponseBase

from controlplane.tenants.models import User
from controlplane.tenants.roles import Access, Capability

View = Callable[..., HttpResponseBase]

NO_TENANT = "There is no such tenant."
"""Said of what is absent and of what is another's: nobody learns which."""


def requires(capability: Capability) -> Callable[[View], View]:
    """A view for signed-in users who hold the capability in the whole fleet; strangers are sent to sign in.

    Raises PermissionDenied for the others.
    """
    return _requires(capability, lambda access: access.may(capability))


def requires_somewhere(capability: Capability) -> Callable[[View], View]:
    """The same for pages that show what `access_of` allows: who holds it in a tenant is let in."""
    return _requires(capability, lambda access: access.may_somewhere(capability))


def requires_in_tenant(capability: Capability) -> Callable[[View], View]:
    """A view with the argument `tenant`, for who holds the capability there: see `check_in_tenant`."""

    def decorate(view: View) -> View:
        @wraps(view)
        def checked(request: HttpRequest, tenant: str, *args: object, **kwargs: object) -> HttpResponseBase:
            check_in_tenant(access_of(request), capability, tenant)
            return view(request, tenant, *args, **kwargs)

        return login_required(checked)

    return decorate


def check_in_tenant(access: Access, capability: Capability, tenant: str) -> None:
    """Raises PermissionDenied for who sees the tenant and may not do this there, or sees none at all; Http404 for who
    does not see it, as for a tenant that does not exist."""
    if access.may(capability, tenant):
        return
    if access.may_somewhere(Capability.TENANTS_VIEW) and not access.may(Capability.TENANTS_VIEW, tenant):
        raise Http404(NO_TENANT)
    raise PermissionDenied(f"Your role does not allow this ({capability}). Ask an administrator.")


def _requires(capability: Capability, fits: Callable[[Access], bool]) -> Callable[[View], View]:
    def decorate(view: View) -> View:
        @wraps(view)
        def checked(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponseBase:
            if not fits(access_of(request)):
                raise PermissionDenied(f"Your role does not allow this ({capability}). Ask an administrator.")
            return view(request, *args, **kwargs)

        return login_required(checked)

    return decorate


viewer_required = requires(Capability.FLEET_VIEW)
"""Pages of the whole fleet."""
change_required = requires(Capability.FLEET_CHANGE)
"""Levers of the whole fleet: workers, pools."""


def access_of(request: HttpRequest) -> Access:
    """What the signed-in user holds."""
    return signed_in(request).access


def signed_in(request: HttpRequest) -> User:
    """The user of a request that `login_required` let through."""
    if not isinstance(request.user, User):
        raise PermissionDenied("Sign in first.")
    return request.user


def actor_of(request: HttpRequest) -> str:
    """The actor's name in the audit log."""
    return f"user:{signed_in(request).get_username()}"
