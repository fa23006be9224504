"""Who may call the API: signed-in operators by session and CSRF token, routers by the fleet's router token."""

from __future__ import annotations

import hmac
from typing import Any

from django.conf import settings
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from controlplane.tenants.models import User


class OperatorSession(SessionAuthentication):
    """DRF's, with a challenge: without credentials the answer is 401, not 403."""

    def authenticate_header(self, request: Request) -> str:
        return "Session"


class RouterPrincipal:
    """A router that showed the token. It is no user: nothing but the snapshot endpoints knows it."""

    is_authenticated = True
    is_active = True
    may_change = False
    pk = None


class RouterToken(BaseAuthentication):
    """`Authorization: Bearer <FleetKey.router_token()>`, compared in constant time."""

    def authenticate(self, request: Request) -> tuple[RouterPrincipal, str] | None:
        scheme, _, token = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        if not hmac.compare_digest(token.strip().encode(), settings.FLEET_KEY.router_token().encode()):
            raise AuthenticationFailed("The router token does not fit. Control plane and routers share the fleet key.")
        return RouterPrincipal(), "router"

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class OperatorMayChange(BasePermission):
    """Signed-in operators read; those whose role allows it write."""

    message = "Your role may read, not change. An administrator can change it."

    def has_permission(self, request: Request, view: APIView) -> bool:
        user = request.user
        if not isinstance(user, User) or not user.is_authenticated:
            return False
        return request.method in SAFE_METHODS or user.may_change


class RouterOnly(BasePermission):
    def has_permission(self, request: Request, view: APIView) -> bool:
        return isinstance(request.user, RouterPrincipal)


class OperatorOrRouter(BasePermission):
    def has_permission(self, request: Request, view: APIView) -> bool:
        return isinstance(request.user, RouterPrincipal | User)


class OperatorSessionScheme(OpenApiAuthenticationExtension):
    target_class = OperatorSession
    name = "operatorSession"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        description = "Session of a signed-in operator; unsafe methods need the CSRF token in X-CSRFToken."
        return {"type": "apiKey", "in": "cookie", "name": settings.SESSION_COOKIE_NAME, "description": description}


class RouterTokenScheme(OpenApiAuthenticationExtension):
    target_class = RouterToken
    name = "routerToken"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "Derived from the fleet key; for routers."}
