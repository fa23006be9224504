"""A signed-in websocket client that counts the dashboard's live updates, for the report of a headless run."""

from __future__ import annotations

import gzip
import json
import time
from datetime import timedelta
from importlib import import_module

import websockets
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY

from controlplane.tenants.models import User

SESSION_LIFE = timedelta(hours=1)
UPDATES_MAX = 100_000
MESSAGE_BYTES_MAX = 8 * 1024 * 1024
"""A push holds at most every panel of the page."""
SUBSCRIBE = json.dumps({"type": "subscribe", "page": "fleet", "query": ""})


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
    """Subscribes to the fleet page as a browser does and appends the time of each push that changed a panel.

    Runs until cancelled; connects again when the server restarts.
    """
    connection = websockets.connect(
        web_url.replace("http", "ws", 1) + "/ws/live",
        origin=websockets.Origin(web_url),
        additional_headers={"Cookie": cookie},
        max_size=MESSAGE_BYTES_MAX,
    )
    async for socket in connection:
        try:
            await socket.send(SUBSCRIBE)
            async for message in socket:
                push = json.loads(gzip.decompress(message) if isinstance(message, bytes) else message)
                if push.get("type") == "panels" and push.get("html") and len(updates) < UPDATES_MAX:
                    updates.append(time.time())
        except websockets.ConnectionClosed:
            continue
