"""Where snapshots come from: the disk at start, a push as a hint, a jittered poll as the truth.

Level-triggered: each poll says which version is served and gets the whole current document when that is another one.
A document that is unsigned, altered, or older in version or epoch is refused; the last good one stays in force.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import httpx
import structlog

from router.adapters.snapshot_disk import SnapshotDisk
from router.adapters.valkey import Valkey
from router.contract.channels import SNAPSHOT_CHANNEL, SNAPSHOT_KEY
from router.contract.hello import RouterHello, encode_hello
from router.contract.secrets import FleetKey
from router.contract.snapshot import (
    SNAPSHOT_BYTES_MAX,
    PolicySnapshot,
    SignedSnapshot,
    SnapshotError,
    encode_document,
    open_document,
)

log = structlog.get_logger("router.snapshots")

POLL_INTERVAL_S = 1.0
POLL_JITTER = 0.2
"""Share of the interval: routers started together do not poll together."""
POLL_TIMEOUT_S = 5.0
POLL_PATH = "/api/v1/snapshots/poll"

Apply = Callable[[SignedSnapshot, PolicySnapshot], None]


class SnapshotSource:
    def __init__(
        self,
        *,
        fleet_key: FleetKey,
        disk: SnapshotDisk,
        apply: Apply,
        confirm: Callable[[], None],
        hello: Callable[[], RouterHello],
        control_url: str,
        valkey: Valkey | None,
        rng: random.Random,
    ) -> None:
        self._fleet_key = fleet_key
        self._disk = disk
        self._apply = apply
        self._confirm = confirm
        self._hello = hello
        self._control_url = control_url.rstrip("/")
        self._valkey = valkey
        self._rng = rng
        self._poll_now = asyncio.Event()
        self.current: SignedSnapshot | None = None
        self.last_error = ""
        """Why the newest offered document was refused, or ""."""
        self.control_up: bool | None = None
        self._epoch_max = 0

    def load_disk(self) -> None:
        """At start, before anything else. A bad file is an error to report, not one to die of."""
        try:
            data = self._disk.read()
            if data is not None:
                self._take(data, keep=False, confirms=False)
        except SnapshotError as error:
            self._refuse("disk", error)

    def offer(self, data: bytes, *, source: str) -> bool:
        """Take a document if it is good and newer. True when it is in force."""
        try:
            # The copy in Valkey may be one the control plane has already replaced: beside a control plane it
            # proves nothing, and namespaces that deny on stale must not be kept open by it.
            confirms = source == "poll" or not self._control_url
            return self._take(data, keep=True, confirms=confirms)
        except SnapshotError as error:
            self._refuse(source, error)
            return False

    async def run_poll(self) -> None:
        """Forever. Without a control plane in reach the copy in Valkey serves as the second way."""
        if not self._control_url and self._valkey is None:
            return
        headers = {"authorization": f"Bearer {self._fleet_key.router_token()}", "content-type": "application/json"}
        async with httpx.AsyncClient(
            timeout=POLL_TIMEOUT_S, headers=headers, trust_env=False, follow_redirects=False
        ) as client:
            while True:
                if not self._control_url or not await self._poll(client):
                    await self._read_valkey()
                await self._sleep()

    async def run_push(self) -> None:
        """Forever: each message leads to a look at the pushed document, then to a poll that acknowledges it."""
        if self._valkey is None:
            return
        async for _ in self._valkey.listen(SNAPSHOT_CHANNEL):
            if await self._read_valkey():
                self._poll_now.set()

    async def _poll(self, client: httpx.AsyncClient) -> bool:
        """True when the control plane answered."""
        try:
            answer = await client.post(self._control_url + POLL_PATH, content=encode_hello(self._hello()))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self._note_control(up=False, why=type(error).__name__)
            return False
        if answer.status_code == 204:
            self._confirm()
        elif answer.status_code == 200:
            if self.offer(answer.content, source="poll"):
                self._poll_now.set()
        else:
            self._note_control(up=False, why=f"status {answer.status_code}")
            return False
        self._note_control(up=True, why="")
        return True

    async def _read_valkey(self) -> bool:
        if self._valkey is None:
            return False
        data = await self._valkey.get(SNAPSHOT_KEY)
        return data is not None and self.offer(data, source="valkey")

    async def _sleep(self) -> None:
        wait_s = POLL_INTERVAL_S * (1 + POLL_JITTER * (2 * self._rng.random() - 1))
        try:
            async with asyncio.timeout(wait_s):
                await self._poll_now.wait()
        except TimeoutError:
            pass
        self._poll_now.clear()

    def _take(self, data: bytes, *, keep: bool, confirms: bool) -> bool:
        if len(data) > SNAPSHOT_BYTES_MAX:
            raise SnapshotError(f"snapshot of {len(data)} bytes is over the limit of {SNAPSHOT_BYTES_MAX}")
        document, snapshot = open_document(data, self._fleet_key)
        current = self.current
        if document.epoch < self._epoch_max:
            raise SnapshotError(f"snapshot of epoch {document.epoch} is older than epoch {self._epoch_max}")
        if current is not None:
            if document.version == current.version and document.digest == current.digest:
                self.last_error = ""
                if confirms:
                    self._confirm()
                return False
            if document.version <= current.version:
                raise SnapshotError(f"snapshot v{document.version} is not newer than v{current.version}")
        self._apply(document, snapshot)
        self.current = document
        self._epoch_max = document.epoch
        self.last_error = ""
        log.info("snapshot_in_force", version=document.version, epoch=document.epoch, workers=len(snapshot.workers))
        if keep:
            self._keep(document)
        return True

    def _keep(self, document: SignedSnapshot) -> None:
        try:
            self._disk.write(encode_document(document))
        except OSError as error:
            # Serving goes on (A18); only a restart without control plane would miss this version.
            log.error("snapshot_not_kept", why=error.strerror)

    def _refuse(self, source: str, error: SnapshotError) -> None:
        if str(error) != self.last_error:
            log.warning("snapshot_refused", source=source, why=str(error))
        self.last_error = str(error)

    def _note_control(self, *, up: bool, why: str) -> None:
        if self.control_up is not up:
            self.control_up = up
            log.info("control_plane_is_up") if up else log.warning("control_plane_is_down", why=why)
