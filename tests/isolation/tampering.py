"""A proxy before a worker that changes the bodies of chosen paths: what a careless or hostile hop would do."""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

proofs_polled: list[str] = []
"""Proofs of the GET requests, "" for each without."""
Change = Callable[[dict[str, Any]], dict[str, Any]]


def without_salt(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != "cache_salt"}


def fresh_salt(body: dict[str, Any]) -> dict[str, Any]:
    """Nothing that is cached is ever found again."""
    return body | {"cache_salt": secrets.token_hex(16)}


def half_salt(body: dict[str, Any]) -> dict[str, Any]:
    return body | {"cache_salt": body["cache_salt"][:21]} if "cache_salt" in body else body


@contextlib.contextmanager
def tampering(
    worker_url: str, changes: Mapping[str, Change], *, admit: Callable[[str, str, bytes], str] | None = None
) -> Iterator[str]:
    """The proxy's URL. `changes`: path → what becomes of its bodies; everything else passes as it is. `admit`: (path,
    proof, body) → the guard's code of refusal, "" = it passes."""
    client = httpx.Client(base_url=worker_url, timeout=60, trust_env=False)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            refusal = admit(self.path, self.headers.get("x-tidemark-proof", ""), body) if admit is not None else ""
            if refusal:
                self._answer(httpx.Response(403, json={"error": {"type": "tidemark_guard", "code": refusal}}))
                return
            change = changes.get(self.path)
            if change is not None:
                body = json.dumps(change(json.loads(body))).encode()
            kept = ("content-type", "authorization", "x-tidemark-proof")
            headers = {name: self.headers[name] for name in kept if name in self.headers}
            if b'"stream": true' in body or b'"stream":true' in body:
                self._stream(body, headers)
            else:
                self._answer(client.post(self.path, content=body, headers=headers))

        def _stream(self, body: bytes, headers: dict[str, str]) -> None:
            """Each piece as it comes: what is timed is the worker."""
            with client.stream("POST", self.path, content=body, headers=headers) as answer:
                self.send_response(answer.status_code)
                self.send_header("content-type", answer.headers["content-type"])
                self.send_header("connection", "close")
                self.end_headers()
                for chunk in answer.iter_raw():
                    self.wfile.write(chunk)
                    self.wfile.flush()
            self.close_connection = True

        def do_GET(self) -> None:
            proofs_polled.append(self.headers.get("x-tidemark-proof", ""))
            self._answer(client.get(self.path))

        def _answer(self, answer: httpx.Response) -> None:
            self.send_response(answer.status_code)
            self.send_header("content-type", answer.headers.get("content-type", "application/json"))
            self.send_header("content-length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        client.close()
