"""The live websocket: pushes a page's panels as HTML whenever figures changed, at most once a second.

Client → server: `{"type": "subscribe", "page": "fleet", "query": "from=-1h&tz=UTC"}`, `{"type": "pause"}`.
Server → client: `{"type": "panels", "at": unix s, "html": "…"}` with the panels whose HTML changed, as gzip in a binary
message: packed once for all who get the same; `{"type": "error", "message": "…"}` as text. Close codes: 4401 signed
out or without the role, 4400 bad message, 1008 too many, 1009 too large, 4408 too slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import time
from collections import deque
from importlib import import_module
from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.contrib.auth import aget_user
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, QueryDict
from django.utils import timezone

from controlplane.tenants.models import User
from controlplane.tenants.roles import Capability
from dashboard.fragments import Rendering, at_hand, render_page
from dashboard.live_pages import PAGES, Viewing, viewing
from dashboard.scope import PageState, read_state
from router.contract.channels import DASHBOARD_GROUP

log = logging.getLogger(__name__)

PUSH_INTERVAL_S = 1.0
"""At most one push a second, whatever is announced."""
IDLE_INTERVAL_S = 5.0
"""Without an announcement panels are looked at anyway: the push is a hint, not the truth."""
SESSION_CHECK_S = 30.0
MESSAGE_BYTES_MAX = 64 * 1024
MESSAGES_MAX, MESSAGES_WINDOW_S = 20, 10.0
SEND_TIMEOUT_S = 5.0
"""A reader that does not take a push within this time is dropped; it connects again when it can."""

CLOSE_SIGNED_OUT, CLOSE_BAD_MESSAGE, CLOSE_TOO_MANY, CLOSE_TOO_LARGE, CLOSE_TOO_SLOW = 4401, 4400, 1008, 1009, 4408


class LiveConsumer(AsyncWebsocketConsumer):
    """One open dashboard. State is its own; renderings are shared by `fragments`."""

    groups = [DASHBOARD_GROUP]

    async def connect(self) -> None:
        self._page = ""
        self._state = PageState()
        self._sent: dict[str, str] = {}
        self._received_at: deque[float] = deque(maxlen=MESSAGES_MAX)
        self._fresh = asyncio.Event()
        self._fresh_at = -math.inf
        """When figures were last said to have changed, on the monotonic clock."""
        self._tasks: list[asyncio.Task[None]] = []
        user = self.scope.get("user")
        if not (user and user.is_authenticated and _may_look(user)):
            # Accepted first, since a refused handshake hides the reason from the page.
            await self.accept()
            await self.close(code=CLOSE_SIGNED_OUT)
            return
        self._access = user.access
        await self.accept()
        self._tasks = [asyncio.create_task(self._push_forever()), asyncio.create_task(self._check_session_forever())]

    async def disconnect(self, code: int) -> None:
        for task in self._tasks:
            task.cancel()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if len(text_data or bytes_data or "") > MESSAGE_BYTES_MAX:
            await self.close(code=CLOSE_TOO_LARGE)
        elif not self._within_rate():
            await self.close(code=CLOSE_TOO_MANY)
        elif text_data is None or not self._apply(text_data):
            await self.close(code=CLOSE_BAD_MESSAGE)

    async def data_fresh(self, message: dict[str, Any]) -> None:
        """Figures changed (DASHBOARD_GROUP); several announcements become one push. The announcer's own clock counts,
        so that all who hear of one change share a rendering, however late each hears of it."""
        age_s = max(0.0, time.time() - float(message.get("at", 0.0)))
        self._fresh_at = max(self._fresh_at, time.monotonic() - age_s)
        self._fresh.set()

    def _within_rate(self) -> bool:
        now_s = time.monotonic()
        full = len(self._received_at) == MESSAGES_MAX
        allowed = not full or now_s - self._received_at[0] > MESSAGES_WINDOW_S
        self._received_at.append(now_s)
        return allowed

    def _apply(self, text: str) -> bool:
        """Whether the message was understood; if so it took effect."""
        try:
            message = json.loads(text)
            kind = message["type"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return False
        if kind == "pause":
            self._page = ""
            return True
        page, query = message.get("page"), message.get("query", "")
        understood = kind == "subscribe" and isinstance(page, str) and isinstance(query, str)
        if not understood or page not in PAGES:
            return False
        self._state = read_state(QueryDict(query).dict(), now=timezone.now(), zones=())
        self._page, self._sent = page, {}
        self._fresh.set()
        return True

    async def _push_forever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._fresh.wait(), IDLE_INTERVAL_S)
            self._fresh.clear()
            # From beginning to beginning: figures come every second, and each push would else meet them later.
            next_at = time.monotonic() + PUSH_INTERVAL_S
            if self._page and not await self._push():
                return
            await asyncio.sleep(max(0.0, next_at - time.monotonic()))

    async def _push(self) -> bool:
        """Send what changed; False when the reader is gone or too slow."""
        try:
            rendering = await _rendered(viewing(self._page, self._state, self._access), since=self._fresh_at)
        except (PermissionDenied, Http404):
            await self.close(code=CLOSE_SIGNED_OUT)
            return False
        except Exception:
            log.exception("panels of %s could not be rendered", self._page)
            # The page keeps its last figures, whose age it shows; the next round tries again.
            message = {"type": "error", "message": "Figures could not be read; trying again."}
            return await self._send(text_data=json.dumps(message))
        changed = {name: html for name, html in rendering.panels.items() if self._sent.get(name) != html}
        self._sent.update(changed)
        return await self._send(bytes_data=rendering.message(changed))

    async def _send(self, **message: Any) -> bool:  # Any: `text_data` or `bytes_data`
        try:
            await asyncio.wait_for(self.send(**message), SEND_TIMEOUT_S)
        except TimeoutError:
            await self.close(code=CLOSE_TOO_SLOW)
            return False
        return True

    async def _check_session_forever(self) -> None:
        while True:
            await asyncio.sleep(SESSION_CHECK_S)
            user = await _user_of(self.scope)
            if user is None or not _may_look(user):
                await self.close(code=CLOSE_SIGNED_OUT)
                return
            self._access = user.access


_asked: dict[tuple[asyncio.AbstractEventLoop, Viewing], tuple[float, asyncio.Task[Rendering]]] = {}
"""Renderings under way and when they were asked for: a thousand sockets that wake together ask a thread once."""


async def _rendered(view: Viewing, *, since: float) -> Rendering:
    """One that was begun at `since` (monotonic clock) or later. Raises what rendering raises."""
    if ready := at_hand(view, since=since):
        return ready
    key = (asyncio.get_running_loop(), view)
    asked_at, task = _asked.get(key, (-math.inf, None))
    if task is None or task.done() or asked_at < since:
        task = asyncio.create_task(_render(view, since))
        _asked[key] = time.monotonic(), task
        task.add_done_callback(lambda ended: _forget_asked(key, ended))
    # Shielded: one socket that goes away must not take the rendering from the others.
    return await asyncio.shield(task)


def _forget_asked(key: tuple[asyncio.AbstractEventLoop, Viewing], ended: asyncio.Task[Rendering]) -> None:
    if _asked.get(key, (0.0, None))[1] is ended:
        del _asked[key]


async def _render(view: Viewing, since: float) -> Rendering:
    rendering: Rendering = await database_sync_to_async(lambda: render_page(view, now=timezone.now(), since=since))()
    return rendering


def _may_look(user: User) -> bool:
    """Whether any live page is of use; each subscription is checked by itself."""
    return user.access.may_somewhere(Capability.METRICS_VIEW)


async def _user_of(scope: dict[str, Any]) -> User | None:
    """The user whom the socket's session names at this moment, read afresh; None when it ended."""
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(scope["session"].session_key)
    user = await aget_user(request)
    return user if isinstance(user, User) and user.is_active else None
