"""Where snapshots come from: the disk at start, a push as a hint, a jittered poll as the truth.

Level-triggered: each poll says which version is served and gets the whole current document when that is another one.
What may come into force is `snapshot_store.py`'s question.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from time import monotonic

import httpx
import structlog

from router.adapters.snapshot_store import SnapshotStore
from router.adapters.valkey import Valkey
from router.contract.channels import SNAPSHOT_CHANNEL, SNAPSHOT_KEY
from router.contract.hello import RouterHello, encode_hello
from router.contract.secrets import FleetKey

log = structlog.get_logger("router.snapshots")

POLL_INTERVAL_S = 1.0
POLL_JITTER = 0.2
"""Share of the interval: routers started together do not poll together."""
POLL_TIMEOUT_S = 5.0
POLL_PATH = "/api/v1/snapshots/poll"
CATCH_UP_S = 0.5
"""A start waits so long for the control plane, so that what was revoked while the router was away is never served."""


class SnapshotSource:
    def __init__(
        self,
        *,
        fleet_key: FleetKey,
        store: SnapshotStore,
        confirm: Callable[[float], None],
        hello: Callable[[], RouterHello],
        control_url: str,
        valkey: Valkey | None,
        rng: random.Random,
    ) -> None:
        """`confirm` is told when, by the monotonic clock, the newest snapshot was asked for that proved in force."""
        self._headers = {"authorization": f"Bearer {fleet_key.router_token()}", "content-type": "application/json"}
        self._store = store
        self._confirm = confirm
        self._hello = hello
        self._control_url = control_url.rstrip("/")
        self._valkey = valkey
        self._rng = rng
        self._poll_now = asyncio.Event()
        self.control_up: bool | None = None

    async def offer(self, data: bytes, *, source: str, asked_at: float | None = None) -> bool:
        """Take a document if it is good and newer. True when it came into force; it is on the disk then."""
        taken = await self._store.receive(data, source=source)
        # The copy in Valkey may be one the control plane has already replaced: beside a control plane it
        # proves nothing, and namespaces that deny on stale must not be kept open by it.
        if taken is not None and (source == "poll" or not self._control_url):
            self._confirm(monotonic() if asked_at is None else asked_at)
        if taken:
            await self._store.keep()
        return taken is True

    async def catch_up(self) -> None:
        """Before the first request is taken: what the control plane, or Valkey without one, has to say by then."""
        if not self._control_url and self._valkey is None:
            return
        try:
            async with asyncio.timeout(CATCH_UP_S), self._client() as client:
                await self._ask(client)
        except TimeoutError:
            log.warning("started_without_control_plane")

    async def run_poll(self) -> None:
        """Forever. Without a control plane in reach the copy in Valkey serves as the second way."""
        if not self._control_url and self._valkey is None:
            return
        async with self._client() as client:
            while True:
                await self._ask(client)
                if not self._store.is_kept:
                    await self._store.keep()
                await self._sleep()

    async def run_push(self) -> None:
        """Forever: each message leads to a look at the pushed document, then to a poll that acknowledges it."""
        if self._valkey is None:
            return
        async for _ in self._valkey.listen(SNAPSHOT_CHANNEL):
            if await self._read_valkey():
                self._poll_now.set()

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(timeout=POLL_TIMEOUT_S, headers=self._headers, trust_env=False, follow_redirects=False)

    async def _ask(self, client: httpx.AsyncClient) -> None:
        if not self._control_url or not await self._poll(client):
            await self._read_valkey()

    async def _poll(self, client: httpx.AsyncClient) -> bool:
        """True when the control plane answered."""
        asked_at = monotonic()
        try:
            answer = await client.post(self._control_url + POLL_PATH, content=encode_hello(self._hello()))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self._note_control(up=False, why=type(error).__name__)
            return False
        if answer.status_code == 204:
            self._confirm(asked_at)
        elif answer.status_code == 200:
            if await self.offer(answer.content, source="poll", asked_at=asked_at):
                self._poll_now.set()
        else:
            self._note_control(up=False, why=f"status {answer.status_code}")
            return False
        self._note_control(up=True, why="")
        return True

    async def _read_valkey(self) -> bool:
        if self._valkey is None:
            return False
        asked_at = monotonic()
        data = await self._valkey.get(SNAPSHOT_KEY)
        return data is not None and await self.offer(data, source="valkey", asked_at=asked_at)

    async def _sleep(self) -> None:
        wait_s = POLL_INTERVAL_S * (1 + POLL_JITTER * (2 * self._rng.random() - 1))
        try:
            async with asyncio.timeout(wait_s):
                await self._poll_now.wait()
        except TimeoutError:
            pass
        self._poll_now.clear()

    def _note_control(self, *, up: bool, why: str) -> None:
        if self.control_up is not up:
            self.control_up = up
            log.info("control_plane_is_up") if up else log.warning("control_plane_is_down", why=why)
