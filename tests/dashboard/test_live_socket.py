"""The live websocket: pushes, coalesces, refuses, drops."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator

import pytest
from asgiref.sync import sync_to_async
from channels.layers import get_channel_layer
from django.test import Client

from controlplane.asgi import application
from controlplane.tenants.models import User
from dashboard import consumers, fragments
from router.contract.channels import DASHBOARD_GROUP
from tests.dashboard import story
from tests.dashboard.socket import Socket

pytestmark = pytest.mark.django_db(transaction=True)

SUBSCRIBE = {"type": "subscribe", "page": "fleet", "query": "tz=UTC"}


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "IDLE_INTERVAL_S", 30.0)
    monkeypatch.setattr(consumers, "PUSH_INTERVAL_S", 0.3)


@sync_to_async
def _cookie() -> bytes:
    client = Client()
    client.force_login(story.make_user("olga"))
    return f"sessionid={client.cookies['sessionid'].value}".encode()


def _socket(cookie: bytes = b"", *, origin: bytes = b"http://localhost") -> Socket:
    return Socket(application, "/ws/live", [(b"origin", origin), (b"host", b"localhost"), (b"cookie", cookie)])


@pytest.fixture
async def socket() -> AsyncIterator[Socket]:
    opened = _socket(await _cookie())
    assert await opened.connect()
    yield opened
    await opened.leave()


async def _panels(socket: Socket) -> str:
    message = await socket.receive_json()
    assert message["type"] == "panels", message
    return str(message["html"])


async def _announce(times: int = 1) -> None:
    for _ in range(times):
        await get_channel_layer().group_send(DASHBOARD_GROUP, {"type": "data.fresh", "what": "fleet", "at": 0.0})


async def test_it_sends_the_whole_page_upon_subscription(socket: Socket) -> None:
    await socket.send_json(SUBSCRIBE)
    html = await _panels(socket)
    assert 'id="panel-tiles"' in html and 'id="panel-churn"' in html


async def test_it_pushes_only_panels_that_changed(socket: Socket) -> None:
    await socket.send_json(SUBSCRIBE | {"page": "policies"})
    await _panels(socket)
    await sync_to_async(story.make_rollout)(story.utc_now())
    fragments.forget()
    await _announce()
    html = await _panels(socket)
    assert "published v12" in html and 'id="panel-watermarks"' not in html


async def test_figures_rendered_before_they_changed_are_not_pushed_as_the_new_ones(socket: Socket) -> None:
    """The change was made by another process, which cannot empty this one's shared renderings."""
    await socket.send_json(SUBSCRIBE | {"page": "policies"})
    await _panels(socket)
    await sync_to_async(story.make_rollout)(story.utc_now())
    message = {"type": "data.fresh", "what": "policies", "at": time.time()}
    await get_channel_layer().group_send(DASHBOARD_GROUP, message)
    assert "published v12" in await _panels(socket)


@pytest.mark.real_time
async def test_pushes_keep_the_pace_of_the_figures_however_long_each_takes(
    socket: Socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Announced every interval, a tenth after the push before began: none of them may wait for two."""
    begun: list[float] = []

    async def slow(view: object, *, since: float) -> fragments.Rendering:
        begun.append(time.monotonic())
        await asyncio.sleep(0.2)
        return fragments.Rendering(story.utc_now(), {"tiles": str(len(begun))})

    monkeypatch.setattr(consumers, "_rendered", slow)
    await socket.send_json(SUBSCRIBE)
    for _ in range(5):
        await _panels(socket)
        await _announce()
    gaps = sorted(after - before for before, after in itertools.pairwise(begun))
    assert gaps[0] >= 0.29 and gaps[len(gaps) // 2] < 0.45, gaps


async def test_it_turns_a_burst_of_announcements_into_few_pushes(socket: Socket) -> None:
    await socket.send_json(SUBSCRIBE)
    await _panels(socket)
    await _announce(50)
    pushes = 0
    while not await socket.silent_for(0.7):
        await _panels(socket)
        pushes += 1
    assert 1 <= pushes <= 2


async def test_it_sends_nothing_while_paused(socket: Socket) -> None:
    await socket.send_json(SUBSCRIBE)
    await _panels(socket)
    await socket.send_json({"type": "pause"})
    await asyncio.sleep(0.1)
    await _announce()
    assert await socket.silent_for(0.8)


async def test_it_refuses_other_origins() -> None:
    opened = _socket(await _cookie(), origin=b"https://evil.example")
    assert not await opened.connect()


async def test_it_tells_a_stranger_to_sign_in() -> None:
    opened = _socket()
    await opened.connect()
    assert await opened.closed_with() == consumers.CLOSE_SIGNED_OUT


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "[]", "null", '{"type": "subscribe"}', '{"type": "subscribe", "page": "secrets"}',
     '{"type": "subscribe", "page": ["fleet"]}', '{"type": "subscribe", "page": "fleet", "query": 7}', "[" * 30_000],
)  # fmt: skip
async def test_it_closes_on_a_message_it_does_not_understand(socket: Socket, text: str) -> None:
    await socket.send(text)
    assert await socket.closed_with() == consumers.CLOSE_BAD_MESSAGE


async def test_it_closes_on_a_message_that_is_too_large(socket: Socket) -> None:
    await socket.send(json.dumps(SUBSCRIBE | {"query": "x" * consumers.MESSAGE_BYTES_MAX}))
    assert await socket.closed_with() == consumers.CLOSE_TOO_LARGE


async def test_it_closes_on_a_flood(socket: Socket) -> None:
    for _ in range(consumers.MESSAGES_MAX + 1):
        await socket.send_json({"type": "pause"})
    assert await socket.closed_with() == consumers.CLOSE_TOO_MANY


async def test_it_ends_with_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "SESSION_CHECK_S", 0.2)
    opened = _socket(await _cookie())
    await opened.connect()
    assert await opened.silent_for(0.5)
    await User.objects.filter(username="olga").aupdate(is_active=False)
    assert await opened.closed_with() == consumers.CLOSE_SIGNED_OUT


async def test_it_drops_a_reader_that_does_not_read(socket: Socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "SEND_TIMEOUT_S", 0.1)
    send = consumers.LiveConsumer.send

    async def stuck(self: consumers.LiveConsumer, text_data: str | None = None, bytes_data: bytes | None = None,
                    close: bool = False) -> None:  # fmt: skip
        if bytes_data:
            await asyncio.sleep(10)
        await send(self, text_data=text_data, bytes_data=bytes_data, close=close)

    monkeypatch.setattr(consumers.LiveConsumer, "send", stuck)
    await socket.send_json(SUBSCRIBE)
    assert await socket.closed_with() == consumers.CLOSE_TOO_SLOW


async def test_it_says_when_figures_cannot_be_read_and_goes_on(socket: Socket, monkeypatch: pytest.MonkeyPatch) -> None:
    render = consumers.render_page

    def broken(*args: object, **kwargs: object) -> object:
        raise RuntimeError("database away")

    monkeypatch.setattr(consumers, "render_page", broken)
    await socket.send_json(SUBSCRIBE)
    message = await socket.receive_json()
    assert message["type"] == "error" and "database" not in message["message"]
    monkeypatch.setattr(consumers, "render_page", render)
    await _announce()
    await _panels(socket)
