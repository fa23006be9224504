"""Whatever workers and clients do, in any order: every request ends once and gives back all that it held.

The real service, table and connections of both sides run on transports without sockets. A run is a story told by
hypothesis: requests come, connections open or fail, workers answer piece by piece, break off or fall silent, clients
leave, read too slowly or lose their access. After every step the books must balance.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.call import Call
from router.core.model import InvalidKey
from router.core.table import RoutingTable
from router.http.protocol import ClientConnection, Edge, EdgeLimits
from router.http.upstream import UpstreamFailed, WorkerConnection, WorkerPool
from router.service import RouterService, ServiceLimits
from tests.router.conftest import ALICE_KEY, FLEET, chat, signed, snapshot_for
from tests.router.scripted_worker import DONE, STREAM_HEAD, chunk, completion, event, usage_event

WORKERS = 3
TEXTS = ["long " * 200, "other " * 200, "short"]
JSON_BODY = json.dumps(completion(), separators=(",", ":")).encode()
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(JSON_BODY)
PIECES = {
    "stream head": STREAM_HEAD,
    "event": chunk(event("word")),
    "usage": chunk(usage_event()),
    "done": chunk(DONE),
    "end of stream": b"0\r\n\r\n",
    "json head": JSON_HEAD,
    "json body": JSON_BODY,
    "half a body": JSON_BODY[:40],
    "500": b"HTTP/1.1 500 X\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}",
    "429": b"HTTP/1.1 429 X\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}",
    "400": b"HTTP/1.1 400 X\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}",
    "302": b"HTTP/1.1 302 X\r\nlocation: http://elsewhere/\r\ncontent-length: 0\r\n\r\n",
    "error event": chunk(b'data: {"error":{"message":"dead"}}\n\n'),
    "garbage": b"\x00\xff nonsense\r\n\r\n",
    "broken chunk": b"zz\r\nnonsense\r\n",
}
LIMITS = EdgeLimits(
    body_bytes_max=1 << 20, header_bytes_max=1 << 14, headers_max=50, connections_max=1000, head_timeout_s=10.0,
    body_timeout_s=10.0, keepalive_s=75.0, stalled_s=60.0,
)  # fmt: skip


pytestmark = pytest.mark.interpreted


class Pipe(asyncio.Transport):
    """A transport without a socket: what is written is dropped, a close is reported in the loop's next turn."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._protocol = protocol
        self.closed = False
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        pass

    def writelines(self, data: Any) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def can_write_eof(self) -> bool:
        return False

    def abort(self) -> None:
        self.lose()

    def close(self) -> None:
        self.lose()

    def lose(self) -> None:
        if not self.closed:
            self.closed = True
            self._loop.call_soon(self._protocol.connection_lost, None)

    _loop: asyncio.AbstractEventLoop


class Pool(WorkerPool):
    """Connections open when the story says so."""

    def __init__(self, url: str, story: CallBalance) -> None:
        super().__init__(url, loop=story.loop, idle_max=2, idle_timeout_s=30.0)
        self._story = story

    async def connect(self, *, timeout_s: float) -> WorkerConnection:
        opened: asyncio.Future[None] = self._story.loop.create_future()
        self._story.opening.append(opened)
        await opened
        connection = WorkerConnection(self)
        Pipe(connection)
        self.add(connection)
        return connection


class CallBalance(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        Pipe._loop = self.loop
        self.opening: list[asyncio.Future[None]] = []
        self.pools: dict[str, Pool] = {}
        self.clients: list[ClientConnection] = []
        self.calls: list[Call] = []
        self.recorded: Counter[str] = Counter()
        self.loop.run_until_complete(self._start())

    async def _start(self) -> None:
        policy = snapshot_for([f"http://127.0.0.1:{9100 + number}" for number in range(WORKERS)])
        self.now = 1000.0
        self.table = RoutingTable(fleet_key=FLEET, booted_at=self.now, rng=random.Random(1))
        self.table.apply_snapshot(signed(policy), policy, now=self.now)
        limits = ServiceLimits(
            worker_inflight_max=4, connect_timeout_s=1.0, stream_head_timeout_s=10.0, first_byte_timeout_s=10.0,
            answer_timeout_s=10.0, retry_budget_share=0.2,
        )  # fmt: skip
        self.service = RouterService(
            table=self.table, upstreams=self, recorder=self, limits=limits, worker_api_key="",
            clock=lambda: self.now, rng=random.Random(2),
        )  # fmt: skip
        self.edge = Edge(handler=self, limits=LIMITS, rng=random.Random(3))

    # what the service and the edge are given

    def pool(self, url: str) -> Pool:
        return self.pools.setdefault(url, Pool(url, self))

    def record(self, call: Call) -> None:
        self.recorded[call.request_id] += 1

    def record_refusal(self, kind: str) -> None:
        raise AssertionError(f"the edge refused a good request: {kind}")

    def refused(self, error: Exception) -> None:
        raise AssertionError(f"the edge refused a good request: {error}")

    def serve(self, head: Any, body: bytes, client: ClientConnection, *, request_id: str) -> None:
        self.service.serve(head, body, client, request_id=request_id)
        if client.call is not None:
            self.calls.append(client.call)

    def waiting(self) -> list[Call]:
        """Calls whose worker has not said anything yet."""
        asked = [call for call in self.under_way() if call.connection is not None]
        return [call for call in asked if call.connection.head is None and not call.connection._buffer]

    def turn(self) -> None:
        """Let everything that is due happen."""
        for _ in range(4):
            self.loop.run_until_complete(asyncio.sleep(0))

    def under_way(self) -> list[Call]:
        return [call for call in self.calls if not call.finished]

    def connected(self) -> list[WorkerConnection]:
        return [call.connection for call in self.under_way() if call.connection is not None]

    # the story

    @rule(
        stream=st.booleans(),
        opens=st.booleans(),
        text=st.sampled_from(["long " * 200, "other " * 200, "short"]),
        again=st.booleans(),
    )
    def a_request_comes(self, stream: bool, opens: bool, text: str, again: bool) -> None:
        body = json.dumps(chat(text, stream=stream)).encode()
        request = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ALICE_KEY}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        ).encode() + body
        idle = [client for client in self.clients if client.call is None and not client.transport.closed]
        if again and idle:
            idle[0].data_received(request)
        else:
            client = ClientConnection(self.edge)
            self.clients.append(client)
            Pipe(client)
            client.data_received(request)
        self.now += 0.01
        self.turn()
        if opens and self.opening:
            self.a_connection_opens_or_fails(opens=True, which=len(self.opening) - 1)

    @precondition(lambda self: self.opening)
    @rule(opens=st.booleans(), which=st.integers(0, 20))
    def a_connection_opens_or_fails(self, opens: bool, which: int) -> None:
        future = self.opening.pop(which % len(self.opening))
        if not future.done():
            if opens:
                future.set_result(None)
            else:
                future.set_exception(UpstreamFailed("upstream_error", "refused"))
        self.turn()

    @precondition(lambda self: self.connected())
    @rule(which=st.integers(0, 20), pieces=st.lists(st.sampled_from(sorted(PIECES)), min_size=1, max_size=4))
    def a_worker_says(self, which: int, pieces: list[str]) -> None:
        connection = self._connection(which)
        for piece in pieces:
            if not connection.transport.closed:
                connection.data_received(PIECES[piece])
        self.turn()

    @precondition(lambda self: self.waiting())
    @rule(which=st.integers(0, 20))
    def a_worker_answers_well(self, which: int) -> None:
        calls = self.waiting()
        call = calls[which % len(calls)]
        answer = STREAM_HEAD + chunk(event("word")) + chunk(usage_event()) + chunk(DONE) + b"0\r\n\r\n"
        assert call.api is not None and call.connection is not None
        call.connection.data_received(answer if call.api.stream else JSON_HEAD + JSON_BODY)
        self.turn()

    @precondition(lambda self: self.connected())
    @rule(which=st.integers(0, 20), how=st.sampled_from(["breaks off", "is silent", "is down"]))
    def a_worker_fails(self, which: int, how: str) -> None:
        connection = self._connection(which)
        if how == "breaks off":
            connection.transport.close()
        elif how == "is silent":
            connection.expire(float("inf"))
        else:
            for each in self.connected():
                if each._pool is connection._pool:
                    each.give_up_waiting()
        self.turn()

    @precondition(lambda self: any(pool._idle for pool in self.pools.values()))
    @rule()
    def an_idle_connection_is_closed(self) -> None:
        next(pool._idle[0] for pool in self.pools.values() if pool._idle).transport.close()
        self.turn()

    @precondition(lambda self: self.under_way())
    @rule(which=st.integers(0, 20), what=st.sampled_from(["leaves", "pauses", "reads on", "loses access"]))
    def a_client(self, which: int, what: str) -> None:
        calls = self.under_way()
        call = calls[which % len(calls)]
        if what == "leaves":
            call.client.transport.close()
        elif what == "pauses":
            call.client.pause_writing()
        elif what == "reads on":
            call.client.resume_writing()
        else:
            self.service.withdraw(call, InvalidKey("revoked"))
        self.turn()

    @rule(pause_s=st.sampled_from([1.0, 40.0]))
    def time_passes(self, pause_s: float) -> None:
        self.now += pause_s

    def _connection(self, which: int) -> WorkerConnection:
        connections = self.connected()
        return connections[which % len(connections)]

    # the books

    @invariant()
    def reservations_are_those_of_the_calls_under_way(self) -> None:
        held = [call.reservation for call in self.under_way()]
        assert all(reservation is not None for reservation in held)
        outstanding = self.table.state(now=self.now).worker_outstanding
        assert sum(outstanding.values()) == len(held) == self.service.inflight
        by_worker = Counter(call.decision.worker for call in self.under_way() if call.decision is not None)
        assert {worker: count for worker, count in outstanding.items() if count} == by_worker

    @invariant()
    def a_call_waits_for_one_thing(self) -> None:
        for call in self.under_way():
            assert (call.connecting is None) != (call.connection is None)

    @invariant()
    def a_finished_call_holds_nothing_and_was_recorded_once(self) -> None:
        for call in self.calls:
            if call.finished:
                assert call.reservation is call.connection is call.connecting is call.relay is None
                assert call.client.call is not call
            assert self.recorded[call.request_id] == call.finished

    @invariant()
    def connections_are_those_of_the_calls_and_the_idle_ones(self) -> None:
        busy = sum(pool.busy for pool in self.pools.values())
        assert busy == len([connection for connection in self.connected() if not connection.lost])
        assert all(len(pool._idle) <= 2 for pool in self.pools.values())

    def teardown(self) -> None:
        for call in self.under_way():
            call.client.transport.close()
        self.turn()
        assert self.service.inflight == 0
        for worker in self.table._fleet.workers.values():
            assert (worker.load.outstanding, worker.load.decoding, worker.load.pending_tokens) == (0, 0, 0)
        assert self.table._fleet.pools["p"].outstanding == 0
        for opening in self.opening:
            opening.cancel()
        self.turn()
        self.loop.close()


CallBalance.TestCase.settings = settings(max_examples=120, stateful_step_count=50)
TestCallBalance = CallBalance.TestCase
