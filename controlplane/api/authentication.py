"""How callers show who they are: by session and CSRF token, by a personal token, or, routers, by the router token."""

from __future__ import annotations

import hmac
from typing import Any

from django.conf import settings
from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from controlplane.tenants.models import PersonalToken, User
from controlplane.tenants.token_services import TOKEN_PREFIX, note_use, token_from


class OperatorSession(SessionAuthentication):
    """DRF's, with a challenge: without credentials the answer is 401, not 403."""

    def authenticate_header(self, request: Request) -> str:
        return "Session"


class PersonalTokenBearer(BaseAuthentication):
    """`Authorization: Bearer tmp_<id>_<secret>`: its owner, within its scopes. No cookie is read, no CSRF needed."""

    def authenticate(self, request: Request) -> tuple[User, PersonalToken] | None:
        text = bearer(request)
        if text is None:
            return None
        now = timezone.now()
        token = token_from(text, now=now)
        if token is None:
            raise AuthenticationFailed("The token is not valid: unknown, expired or revoked.")
        note_use(token, now)
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


def bearer(request: Request) -> str | None:
    """What follows `Bearer`, or None when the request shows no bearer token."""
    scheme, _, token = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


class RouterPrincipal:
    """A router that showed the token. It is no user: nothing but the snapshot endpoints knows it."""

    is_authenticated = True
    is_active = True
    pk = None


class RouterToken(BaseAuthentication):
    """`Authorization: Bearer <FleetKey.router_token()>`, compared in constant time."""

    def authenticate(self, request: Request) -> tuple[RouterPrincipal, str] | None:
        token = bearer(request)
        if token is None or token.startswith(TOKEN_PREFIX):
            return None
        if not hmac.compare_digest(token.encode(), settings.FLEET_KEY.router_token().encode()):
            raise AuthenticationFailed("The router token does not fit. Control plane and routers share the fleet key.")
        return RouterPrincipal(), "router"

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class OperatorSessionScheme(OpenApiAuthenticationExtension):
    target_class = OperatorSession
    name = "operatorSession"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        description = "Session of a signed-in operator; unsafe methods need the CSRF token in X-CSRFToken."
        return {"type": "apiKey", "in": "cookie", "name": settings.SESSION_COOKIE_NAME, "description": description}


class PersonalTokenScheme(OpenApiAuthenticationExtension):
    target_class = PersonalTokenBearer
    name = "personalToken"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "A personal token, tmp_…, made at /my/tokens."}


class RouterTokenScheme(OpenApiAuthenticationExtension):
    target_class = RouterToken
    name = "routerToken"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "Derived from the fleet key; for routers."}
