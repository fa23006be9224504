"""What a client sends is kept nowhere (S19): 10,000 marked requests leave no trace in logs, files, tables or Valkey.

Valkey is watched command by command while the requests run, so that tasks' arguments and telemetry that are gone a
second later are seen too.
"""

from __future__ import annotations

import base64
import json
import socket
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from tests.installation import Installation, wait_until

pytestmark = [pytest.mark.flow, pytest.mark.timeout(240)]

MARKER = "Zq7rEdAcTiOn9mArKeR"
FORMS = (
    MARKER.encode(),
    MARKER.lower().encode(),
    *(base64.b64encode(b"x" * shift + MARKER.encode())[4:-4] for shift in range(3)),
)
"""As sent, in lower case, and inside base64 at each of its three alignments."""
REQUESTS = 10_000
CONNECTIONS = 8
CHAT = "/v1/chat/completions"
FAULTS: tuple[dict[str, object], ...] = ({}, {"status": 500}, {"status": None, "die_mid_stream": 1.0}, {"hang": True})
"""What the workers do wrong during a quarter of the odd requests each; a hanging engine makes clients go away."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    installation = Installation(tmp_path_factory.mktemp("redaction"))
    installation.start("--demo")
    try:
        installation.wait_until_serving()
        yield installation
    finally:
        installation.end()


class ValkeyWatch(threading.Thread):
    """Every command that any client gives to Valkey, searched as it passes."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.commands = 0
        self.found: list[str] = []
        self.ended = threading.Event()

    def run(self) -> None:
        with redis.Redis.from_url(self.url, socket_timeout=0.5) as client, client.monitor() as monitor:
            while not self.ended.is_set():
                try:
                    command = str(monitor.next_command()["command"]).encode()
                except redis.TimeoutError:
                    continue
                self.commands += 1
                self.found += _found_in(command, "a command to Valkey")


def test_a_marker_in_10000_requests_is_kept_nowhere_s19(demo: Installation) -> None:
    url = demo.python("from django.conf import settings\nresult = settings.REDIS_URL")
    watch = ValkeyWatch(url)
    watch.start()
    key = (demo.run_dir / "demo-key").read_text().strip()
    statuses = _send_marked(demo, key)
    _send_after_faults(demo, key, statuses)
    assert {200, 400, 401, 404, 413} <= statuses.keys(), statuses
    assert {500, 502, 503, 504} & statuses.keys(), statuses
    seen = demo.number("SELECT sum(requests) FROM telemetry_requestrollup WHERE width_s = 10")
    wait_until(
        lambda: demo.number("SELECT sum(requests) FROM telemetry_requestrollup WHERE width_s = 10") > seen or None,
        30,
        "telemetry of the marked requests",
    )
    time.sleep(2.0)
    watch.ended.set()
    watch.join(5)
    assert watch.commands > 1000 and watch.found == []
    assert _found_in_valkey(url) == []
    assert _found_in_tables(demo) == []
    files = [path for path in demo.run_dir.rglob("*") if path.is_file()] + [demo.log_file]
    assert len(files) > 3
    assert [found for path in files for found in _found_in(path.read_bytes(), str(path))] == []


def test_the_search_finds_what_is_there(demo: Installation) -> None:
    url = demo.python("from django.conf import settings\nresult = settings.REDIS_URL")
    with redis.Redis.from_url(url) as client:
        client.hset("tidemark:test:marked", "field", f"a {MARKER} b")
        try:
            assert _found_in_valkey(url)
        finally:
            client.delete("tidemark:test:marked")
    for text in ("", "a", "ab", "abc"):
        assert _found_in(base64.b64encode(f"{text}{MARKER} and more".encode()), "base64")
    demo.python(
        f"from controlplane.tenants.models import Tenant\nTenant.objects.create(slug='marked', name={MARKER!r})\n"
    )
    assert any("tenants_tenant" in found for found in _found_in_tables(demo))


def _send_marked(demo: Installation, key: str) -> Counter[int]:
    """Kept-alive connections, on each one request of each kind in turn."""
    kinds = list(_kinds(key))

    def send(numbers: range) -> Counter[int]:
        statuses: Counter[int] = Counter()
        with closing(HTTPConnection("127.0.0.1", demo.ports["TIDEMARK_ROUTER_PORT"], timeout=30)) as connection:
            for number in numbers:
                method, path, headers, content = kinds[number % len(kinds)]
                connection.request(method, path, content, headers)
                answer = connection.getresponse()
                answer.read()
                statuses[answer.status] += 1
        return statuses

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        share = REQUESTS // CONNECTIONS
        parts = pool.map(send, [range(first, first + share) for first in range(0, REQUESTS, share)])
        return sum(parts, Counter())


def _kinds(key: str) -> Iterator[tuple[str, str, dict[str, str], bytes]]:
    """Good requests, and bad ones of each kind, each with the marker where such a request has room for it."""
    good = {
        "authorization": f"Bearer {key}",
        "x-session-id": f"s-{MARKER}",
        "x-request-id": MARKER,
        "user-agent": MARKER,
    }
    yield "POST", CHAT, good, _body()
    yield "POST", CHAT, good, _body(stream=True, user=MARKER)
    yield "POST", CHAT, good, _body(tools=[{"type": "function", "function": {"name": MARKER, "description": MARKER}}])
    yield "POST", "/v1/completions", good, _json({"model": "sim-llama", "prompt": f"{MARKER} and on", "max_tokens": 1})
    yield "POST", CHAT, good, _body(**{MARKER: MARKER})
    yield "POST", CHAT, good, _body(model=MARKER)
    yield "POST", CHAT, good, _body(temperature=MARKER)
    yield "POST", CHAT, good, _body(kv_transfer_params={"remote_host": MARKER})
    yield "POST", CHAT, good, _body()[:-1] + MARKER.encode()
    yield "POST", CHAT, good, b'{"model":"sim-llama","messages":"' + MARKER.encode() + b"\xff" + b'"}'
    yield "POST", CHAT, {"authorization": f"Bearer tm_{MARKER}_{MARKER}"}, _body()
    yield "POST", CHAT, {"authorization": f"Bearer {key}{MARKER}"}, _body()
    yield "POST", f"/v1/{MARKER}?q={MARKER}", good, _body()
    yield "GET", f"/v1/models?{MARKER}={MARKER}", good, b""


def _send_after_faults(demo: Installation, key: str, statuses: Counter[int]) -> None:
    """5xx answers, broken streams, clients that go away, a body that is too large, and bytes that are no HTTP."""
    workers = [f"http://127.0.0.1:{demo.ports['TIDEMARK_DEMO_WORKER_PORT'] + number}" for number in range(4)]
    with httpx.Client(trust_env=False, timeout=2) as client:
        headers = {"authorization": f"Bearer {key}"}
        try:
            for fault in FAULTS:
                for worker in workers:
                    client.post(f"{worker}/sim/faults", json=fault).raise_for_status()
                for number in range(4):
                    _try(client, f"{demo.router}{CHAT}", headers, _body(stream=number % 2 == 0), statuses)
        finally:
            for worker in workers:
                client.post(f"{worker}/sim/faults", json={"hang": False, "status": None, "die_mid_stream": 0.0})
    for raw in (
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 999999999999\r\n\r\n{MARKER}",
        f"GET /{MARKER} HTTP/9.9\r\n{MARKER}: \x00{MARKER}\r\n\r\n",
        f"{MARKER} {MARKER}\n\n",
    ):
        with socket.create_connection(("127.0.0.1", demo.ports["TIDEMARK_ROUTER_PORT"]), timeout=5) as connection:
            connection.sendall(raw.encode())
            status = connection.recv(4096).split(b" ", 2)[1]
            statuses[int(status)] += 1


def _try(client: httpx.Client, url: str, headers: dict[str, str], content: bytes, statuses: Counter[int]) -> None:
    try:
        statuses[client.post(url, headers=headers, content=content).status_code] += 1
    except httpx.HTTPError:
        statuses[0] += 1


def _body(**fields: Any) -> bytes:
    messages = [{"role": "system", "content": f"{MARKER} rules. " * 40}, {"role": "user", "content": f"Say {MARKER}"}]
    return _json({"model": "sim-llama", "messages": messages, "max_tokens": 1, **fields})


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _found_in(data: bytes, place: str) -> list[str]:
    return [f"{place}: {form.decode()}" for form in FORMS if form in data]


def _found_in_valkey(url: str) -> list[str]:
    """Keys and values of every kind; a dump without compression holds a value's bytes as they are."""
    found = []
    with redis.Redis.from_url(url) as client:
        client.config_set("rdbcompression", "no")
        for name in client.scan_iter(count=1000):
            found += _found_in(name, "a key") + _found_in(client.dump(name) or b"", repr(name))
    return found


def _found_in_tables(demo: Installation) -> list[str]:
    """Each row of each table, as SQLite gives it: also what is in the write-ahead log only."""
    found = []
    path: Path = demo.run_dir / "tidemark.sqlite3"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        assert len(tables) > 20
        for table in tables:
            for row in database.execute(f'SELECT * FROM "{table}"'):
                found += _found_in(repr(row).encode(), table)
    return found
