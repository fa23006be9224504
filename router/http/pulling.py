"""The first request of a pull: the source is asked to compute a prompt and to offer its KV (`pull_bodies.py`).

A `Pull` is an exchange with the source's connection, as a `Call` is with that of its own worker. It ends in exactly one
of `pull_answered` and `pull_failed`, or is let go before: by a client that left, a withdrawn key, the router's end.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from router.core.model import Reservation
from router.http.pull_bodies import OFFER_BYTES_MAX, Offer, read_offer
from router.http.relay import LengthRelay
from router.http.upstream import StaleConnection, UpstreamFailed, WorkerConnection, WorkerPool

PATIENCE_S: Final = 1.0
"""What a source may take beyond twice the predicted time: sweeps are 0.25 s apart, and predictions err."""
PATIENCE_FACTOR: Final = 2.0


def patience_s(answer_ms: float, *, most_s: float) -> float:
    """How long the source may take: after that, computing the prompt would mostly be done already."""
    return min(PATIENCE_S + PATIENCE_FACTOR * answer_ms / 1000.0, most_s)


class Owner(Protocol):
    def pull_answered(self, offer: Offer, *, reusable: bool) -> None: ...

    def pull_failed(self, error: UpstreamFailed) -> None: ...


class Pull:
    def __init__(
        self,
        owner: Owner,
        pool: WorkerPool,
        reservation: Reservation,
        request: tuple[bytes, bytes],
        *,
        within_s: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`request`: head and body for the source."""
        self.reservation: Final = reservation
        self._owner = owner
        self._pool = pool
        self._request = request
        self._within_s = within_s
        self._loop = loop
        self._connecting: asyncio.Task[None] | None = None
        self._connection: WorkerConnection | None = None
        self._relay: LengthRelay | None = None
        self._answer: list[bytes] = []

    def start(self, *, connect_timeout_s: float) -> None:
        connection = self._pool.take_idle()
        if connection is None:
            self._connecting = self._loop.create_task(self._connect(connect_timeout_s))
            return
        self._ask(connection)

    def let_go(self, *, reusable: bool = False) -> None:
        """The source's connection goes; nothing is called back any more."""
        connecting, connection = self._connecting, self._connection
        self._connecting = self._connection = None
        if connecting is not None:
            connecting.cancel()
        if connection is not None:
            connection.release(reusable=reusable)

    async def _connect(self, timeout_s: float) -> None:
        try:
            connection = await self._pool.connect(timeout_s=min(timeout_s, self._within_s))
        except UpstreamFailed as error:
            self._connecting = None
            self._owner.pull_failed(error)
            return
        self._connecting = None
        self._ask(connection)

    def _ask(self, connection: WorkerConnection) -> None:
        self._connection = connection
        try:
            connection.ask(self, self._request, head_timeout_s=self._within_s, body_timeout_s=self._within_s)
        except UpstreamFailed as error:
            self._owner.pull_failed(error)

    # the connection calls back

    def answer_begun(self) -> None:
        connection = self._connection
        assert connection is not None and connection.head is not None
        head = connection.head
        if head.status != 200 or head.content_length is None or head.content_length > OFFER_BYTES_MAX:
            # A refusal of the request itself is for the client to read, in the words of whoever is asked next.
            kind = "bad_request" if 400 <= head.status < 429 else "upstream_error"
            self._owner.pull_failed(UpstreamFailed(kind, f"status {head.status}", counts=head.status >= 500))
            return
        self._relay = LengthRelay(head.content_length)
        try:
            connection.relay(self._relay, self, client_head=b"")
        except UpstreamFailed as error:
            self._owner.pull_failed(error)
            return
        if self._relay.complete:
            self.answer_complete()

    def write(self, data: bytes) -> None:
        self._answer.append(data)

    def answer_complete(self) -> None:
        offer = read_offer(b"".join(self._answer))
        if offer is None:
            self._owner.pull_failed(UpstreamFailed("upstream_error", "no offer in its answer", counts=False))
            return
        assert self._relay is not None
        self._owner.pull_answered(offer, reusable=self._relay.reusable)

    def answer_failed(self, error: UpstreamFailed | StaleConnection) -> None:
        if isinstance(error, StaleConnection):
            self._connection = None
            self.start_afresh()
        else:
            self._owner.pull_failed(error)

    def start_afresh(self) -> None:
        """The source closed an idle connection: a new one is opened."""
        self._connecting = self._loop.create_task(self._connect(self._within_s))
