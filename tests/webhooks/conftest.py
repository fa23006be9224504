"""A receiver on this machine that takes down what it is sent, and answers as the test says."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from controlplane.webhooks.services import Made, create_subscription

ACTOR = "user:olga"


@pytest.fixture(autouse=True)
def surroundings(settings, tmp_path, monkeypatch) -> None:
    """No Valkey, and receivers on this machine are allowed."""
    settings.REDIS_URL = f"unix://{tmp_path}/none.sock"
    monkeypatch.setattr(settings.CONFIG, "webhook_networks", ["127.0.0.0/8"])


@dataclass
class Receiver:
    url: str = ""
    status: int = 200
    location: str = ""
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    """(headers, body) of each request."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    told = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            told.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(told.status)
            if told.location:
                self.send_header("Location", told.location)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    told.url = f"http://127.0.0.1:{server.server_port}/hooks/s3cret-path"
    yield told
    server.shutdown()
    server.server_close()


@pytest.fixture
def pager(db, receiver: Receiver) -> Made:
    return create_subscription(actor=ACTOR, slug="pager", url=receiver.url, events=["*"])
