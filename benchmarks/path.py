"""What one request costs the router in Python itself: bytecode instructions by file, and CPU, without sockets.

The real edge, service and routing table, with transports that only note what is written. The count of instructions
does not depend on the machine or on what else runs there, so it shows a change of a few per cent that no timing would;
the CPU figure is the best of several rounds. `benchmarks.proxy` measures the whole on real sockets.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import sys
import time
from collections import Counter, deque
from pathlib import Path
from types import CodeType
from typing import Any

from benchmarks.proxybench.ours import Fleet, bench_snapshot
from router.adapters.telemetry_ship import TelemetryShipper
from router.contract.secrets import FleetKey, new_api_key
from router.contract.snapshot import open_document
from router.contract.telemetry import PrefixHeat, RouterState
from router.core.table import RoutingTable
from router.explaining import RecentDecisions
from router.http.protocol import ClientConnection, Edge, EdgeLimits
from router.http.upstream import Upstreams, WorkerConnection
from router.service import RouterService, ServiceLimits

ROOT = Path(__file__).parent.parent
WARM_UP = 1000
COUNTED = 50
TIMED = 1000
ROUNDS = 7
CASES = {"1k": (0, 900), "64k": (64_000, 200)}
"""Shared and unique characters of the prompt."""
SERVICE_LIMITS = ServiceLimits(
    worker_inflight_max=1024, connect_timeout_s=1.0, stream_head_timeout_s=60.0, first_byte_timeout_s=60.0,
    answer_timeout_s=60.0, retry_budget_share=0.2,
)  # fmt: skip
EDGE_LIMITS = EdgeLimits(
    body_bytes_max=1 << 20, header_bytes_max=1 << 14, headers_max=100, connections_max=1024, head_timeout_s=60.0,
    body_timeout_s=60.0, keepalive_s=60.0, stalled_s=60.0,
)  # fmt: skip
_TOOL_ID = 3
"""A number that CPython leaves to tools."""
_ANSWER = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"%b"},"finish_reason":"stop"}],"usage":{"prompt_tokens":240,"total_tokens":260,'
    b'"completion_tokens":20,"prompt_tokens_details":{"cached_tokens":192}}}'
) % (b"x" * 200)
ANSWER = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-length: %d\r\ncontent-type: application/json\r\n\r\n%b" % (
    len(_ANSWER),
    _ANSWER,
)


class NotingTransport:
    """Stands for a socket: says which connection was last written to."""

    def __init__(self, owner: Any, written: list[Any]) -> None:  # Any: a connection of either side
        self._owner = owner
        self._written = written

    def write(self, data: bytes) -> None:
        self._written.append(self._owner)

    def writelines(self, data: Any) -> None:
        self._written.append(self._owner)

    def set_write_buffer_limits(self, high: int) -> None:
        """Nothing is buffered."""


class Bench:
    """A router without its ports: clients with one request under way each, and idle connections to the workers."""

    def __init__(self, inflight: int) -> None:
        fleet_hex = FleetKey.generate_hex()
        fleet = FleetKey.from_hex(fleet_hex)
        key_id, secret, key = new_api_key()
        self._key = key.encode()
        self._sent = 0
        self._written: list[Any] = []
        rng = random.Random(1)
        now = time.time()
        table = RoutingTable(fleet_key=fleet, booted_at=now, rng=rng)
        document, snapshot = open_document(bench_snapshot(fleet, key_id, secret, range(1, 5), Fleet()), fleet)
        table.apply_snapshot(document, snapshot, now=now)
        upstreams = Upstreams(loop=asyncio.get_running_loop(), idle_max=1024, idle_timeout_s=60.0)
        telemetry = TelemetryShipper(
            router_id="bench", boot="0", valkey=None, clock=time.time, policy_version=lambda: 1, state=_no_state
        )
        service = RouterService(
            table=table, upstreams=upstreams, recorder=RecentDecisions(telemetry), limits=SERVICE_LIMITS,
            worker_api_key="", clock=time.time, rng=rng,
        )  # fmt: skip
        edge = Edge(handler=service, limits=EDGE_LIMITS, rng=rng)
        self._free = deque(ClientConnection(edge) for _ in range(inflight))
        self._asked: deque[tuple[ClientConnection, WorkerConnection]] = deque()
        for client in self._free:
            self._attach(client)
        for worker in snapshot.workers.values():
            pool = upstreams.pool(worker.url)
            for _ in range(inflight):
                connection = WorkerConnection(pool)
                self._attach(connection)
                pool.add(connection)
                pool.give_back(connection)

    def requests(self, count: int, *, shared: int, unique: int) -> list[bytes]:
        return [self._request(shared, unique) for _ in range(count)]

    def serve(self, request: bytes) -> None:
        """Send one request; when every client waits, the longest waiting one is answered first."""
        if not self._free:
            waiting, worker = self._asked.popleft()
            worker.data_received(ANSWER)
            if self._written.pop() is not waiting:
                raise RuntimeError("the client got no answer")
            self._free.append(waiting)
        client = self._free.popleft()
        client.data_received(request)
        self._asked.append((client, self._written.pop()))

    def _attach(self, connection: Any) -> None:
        connection.connection_made(NotingTransport(connection, self._written))

    def _request(self, shared: int, unique: int) -> bytes:
        self._sent += 1
        own = (b"%08d" % self._sent) * (unique // 8 + 1)
        body = (
            b'{"model":"m","messages":[{"role":"system","content":"%b"},{"role":"user","content":"%b"}],"max_tokens":100}'
        ) % (b"s" * shared, own[:unique])
        return (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Authorization: Bearer %b\r\nContent-Length: %d\r\n\r\n%b"
        ) % (self._key, len(body), body)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.path", description=__doc__)
    parser.add_argument("--case", choices=CASES, default="1k")
    parser.add_argument("--functions", type=int, default=0, metavar="N", help="also the N costliest functions")
    parser.add_argument("--inflight", type=int, default=32, help="requests under way at a time")
    options = parser.parse_args()
    asyncio.run(_measure(options.case, options.inflight, options.functions))
    return 0


async def _measure(case: str, inflight: int, functions: int) -> None:
    shared, unique = CASES[case]
    bench = Bench(inflight)
    for request in bench.requests(WARM_UP, shared=shared, unique=unique):
        bench.serve(request)
    counts = _count_instructions(bench, bench.requests(COUNTED, shared=shared, unique=unique))
    files: Counter[str] = Counter()
    for code, count in counts.items():
        files[_place(code)] += count
    print(f"{case}, {inflight} under way: {sum(files.values()) / COUNTED:.0f} instructions a request")
    for place, count in files.most_common():
        print(f"{count / COUNTED:8.0f}  {place}")
    for code, count in counts.most_common(functions):
        print(f"{count / COUNTED:8.0f}  {code.co_qualname} ({_place(code)})")
    print(f"{_best_cpu_us(bench, shared, unique):.1f} µs of CPU a request, best of {ROUNDS} rounds")


def _count_instructions(bench: Bench, requests: list[bytes]) -> Counter[CodeType]:
    counts: Counter[CodeType] = Counter()

    def count(code: CodeType, offset: int) -> None:
        counts[code] += 1

    watch = sys.monitoring
    watch.use_tool_id(_TOOL_ID, "benchmarks.path")
    watch.register_callback(_TOOL_ID, watch.events.INSTRUCTION, count)
    watch.set_events(_TOOL_ID, watch.events.INSTRUCTION)
    for request in requests:
        bench.serve(request)
    watch.set_events(_TOOL_ID, 0)
    watch.free_tool_id(_TOOL_ID)
    return counts


def _best_cpu_us(bench: Bench, shared: int, unique: int) -> float:
    best_s = float("inf")
    for _ in range(ROUNDS):
        requests = bench.requests(TIMED, shared=shared, unique=unique)
        gc.collect()
        began_s = time.process_time()
        for request in requests:
            bench.serve(request)
        best_s = min(best_s, time.process_time() - began_s)
    return best_s / TIMED * 1e6


def _place(code: CodeType) -> str:
    path = Path(code.co_filename)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def _no_state(now: float, dropped: int) -> tuple[RouterState, list[PrefixHeat]]:
    """Only asked for when a second is shipped."""
    raise NotImplementedError


if __name__ == "__main__":
    sys.exit(main())
