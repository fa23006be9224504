"""Who may see a page and who may change what it shows."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseBase

from controlplane.tenants.models import User

View = Callable[..., HttpResponseBase]


def viewer_required(view: View) -> View:
    """Any signed-in operator; others are sent to the sign-in page."""
    return login_required(view)


def change_required(view: View) -> View:
    """A signed-in user whose role may change the fleet. Raises PermissionDenied for a viewer."""

    @wraps(view)
    def checked(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        if not signed_in(request).may_change:
            raise PermissionDenied("Your role is viewer: ask an administrator for the operator role.")
        return view(request, *args, **kwargs)

    return login_required(checked)


def signed_in(request: HttpRequest) -> User:
    """The user of a request that `login_required` let through."""
    if not isinstance(request.user, User):
        raise PermissionDenied("Sign in first.")
    return request.user


def actor_of(request: HttpRequest) -> str:
    """The actor's name in the audit log."""
    return f"user:{signed_in(request).get_username()}"
