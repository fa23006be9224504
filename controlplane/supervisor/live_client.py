"""A signed-in websocket client that counts the dashboard's live updates, for the report of a headless run."""

from __future__ import annotations

import time
from datetime import timedelta
from importlib import import_module

import websockets
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY

from controlplane.tenants.models import User

SESSION_LIFE = timedelta(hours=1)
UPDATES_MAX = 100_000


def session_cookie() -> str:
    """A cookie header of a short session of the first administrator."""
    user = User.objects.filter(is_superuser=True).order_by("pk").first()
    if user is None:
        raise LookupError("there is no administrator")
    store = import_module(settings.SESSION_ENGINE).SessionStore()
    store[SESSION_KEY] = str(user.pk)
    store[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
    store[HASH_SESSION_KEY] = user.get_session_auth_hash()
    store.set_expiry(SESSION_LIFE)
    store.create()
    return f"{settings.SESSION_COOKIE_NAME}={store.session_key}"


async def count_updates(web_url: str, cookie: str, updates: list[float]) -> None:
    """Appends the time of each message from `/ws/live` until cancelled; connects again when the server restarts."""
    url = web_url.replace("http", "ws", 1) + "/ws/live"
    connection = websockets.connect(url, origin=websockets.Origin(web_url), additional_headers={"Cookie": cookie})
    async for socket in connection:
        try:
            async for _ in socket:
                if len(updates) < UPDATES_MAX:
                    updates.append(time.time())
        except websockets.ConnectionClosed:
            continue
