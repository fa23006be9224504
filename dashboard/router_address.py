"""Where applications reach the routers, for examples on pages."""

from __future__ import annotations

from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest


def router_address(request: HttpRequest) -> str:
    """`TIDEMARK_ROUTER_URL`; where that is not set, the router that `manage.py up` starts beside this server."""
    if settings.CONFIG.router_url:
        return str(settings.CONFIG.router_url).rstrip("/")
    host = urlsplit(f"//{request.get_host()}").hostname or "127.0.0.1"
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{settings.CONFIG.router_port}"
