"""The API as an ASGI server calls it: bodies in chunks, without a length."""

from __future__ import annotations

import asyncio
import json

import pytest
from asgiref.sync import async_to_sync
from django.conf import settings
from django.core.asgi import get_asgi_application

POLL = "/api/v1/snapshots/poll"


def _call(path: str, chunks: list[bytes]) -> tuple[int, bytes]:
    """(status, body) of a POST with the router's token and `Transfer-Encoding: chunked`."""
    sent: list[dict] = []
    events = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    events.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> dict:
        if not events:
            await asyncio.Event().wait()  # the client stays until it is answered
        return events.pop(0)

    async def send(event: dict) -> None:
        sent.append(event)

    headers = {
        "host": "localhost",
        "content-type": "application/json",
        "transfer-encoding": "chunked",
        "authorization": f"Bearer {settings.FLEET_KEY.router_token()}",
    }
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()], "http_version": "1.1",
        "scheme": "http", "server": ("localhost", 80), "client": ("127.0.0.1", 1), "root_path": "",
    }  # fmt: skip
    async_to_sync(get_asgi_application())(scope, receive, send)
    status = next(event["status"] for event in sent if event["type"] == "http.response.start")
    return status, b"".join(event.get("body", b"") for event in sent)


@pytest.mark.django_db(transaction=True)
def test_a_body_in_chunks_is_read() -> None:
    status, _ = _call(POLL, [b'{"router":"r1","boot":"b","at":0,', b'"snapshot_version":0,"epoch":0}'])
    assert status == 200, "the first snapshot, however empty"


@pytest.mark.django_db(transaction=True)
def test_a_body_in_chunks_has_its_limit_too() -> None:
    status, body = _call(POLL, [b"x" * 5_000, b"x" * 5_000])
    assert (status, json.loads(body)["code"]) == (413, "too_large")
