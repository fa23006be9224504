"""The traffic player: recorded sessions and conversations, replayed against a router for several tenants.

WEKA sessions are closed-loop: a slot sends a turn, waits for the answer and for the recorded think time ÷ speed, then
sends the next; when a session ends the slot takes another. Mooncake's conversations are open-loop: each request goes
out at its recorded time ÷ speed. `mixed` plays both. Endless unless a duration is given.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np

from simulator.clients import Client
from simulator.prose import block_text, seed_of
from simulator.replay import (
    CONVERSATION_SCALE,
    WEKA_SCALE,
    ChatTurn,
    conversation_chat,
    load_conversation,
    load_weka,
    weka_chat,
)
from simulator.report import TrafficReport
from simulator.script import SessionPlay, SessionScript, weighted_choice
from simulator.sender import ANSWER_S_MAX, Sender

TRACE_NAMES = ("weka", "conversation", "mixed")
INFLIGHT_MAX = 256
"""Requests under way at once, all together; also the size of the connection pool."""
PROBE_BLOCKS = 64
PROBE_BYTES_PER_BLOCK = 64
"""A probe's own text: 1,024 tokens that no other request contains."""
PROBE_CHECK_S = 1.0


@dataclass(frozen=True, slots=True)
class TrafficConfig:
    url: str
    clients: list[Client]
    trace: str = "weka"
    speed: float = 8.0
    """Think times and arrival gaps are divided by it."""
    conversation_speed: float | None = None
    """Speed of the conversation trace; None = `speed`."""
    length_scale: float | None = None
    """None = each trace's own default."""
    sessions: int = 26
    duration_s: float | None = None
    seed: int = 1
    report: Path | None = None
    probe_share: float = 0.0
    """Isolation probes as a share of the requests; needs clients of two tenants."""


class TrafficPlayer:
    def __init__(self, config: TrafficConfig, http: httpx.AsyncClient, report: TrafficReport) -> None:
        self._config = config
        self._report = report
        self._sender = Sender(http, report, seed=config.seed)
        self._shares = [client.share for client in config.clients]
        self._room = asyncio.Semaphore(INFLIGHT_MAX)

    async def play(self) -> None:
        """Until cancelled."""
        config = self._config
        async with asyncio.TaskGroup() as tasks:
            if config.trace in ("weka", "mixed"):
                script = SessionScript(load_weka(), seed=config.seed)
                for slot in range(config.sessions):
                    tasks.create_task(self._play_slot(script, slot))
            if config.trace in ("conversation", "mixed"):
                tasks.create_task(self._play_conversations(tasks))
            if config.probe_share > 0:
                tasks.create_task(self._probe_isolation())

    async def _play_slot(self, script: SessionScript, slot: int) -> None:
        """Slots begin spread over their first pause, in sessions already in progress."""
        play = script.join()
        await asyncio.sleep(play.turns[0].pause_s / self._config.speed * (slot + 1) / self._config.sessions)
        while True:
            await self._play_session(play)
            play = script.next()
            await asyncio.sleep(play.turns[0].pause_s / self._config.speed)

    async def _play_session(self, play: SessionPlay) -> None:
        config = self._config
        for index, turn in enumerate(play.turns):
            if index > 0:
                await asyncio.sleep(turn.pause_s / config.speed)
            scale = config.length_scale or WEKA_SCALE
            chat = weka_chat(turn, generation=play.generation, seed=config.seed, scale=scale)
            async with self._room:
                await self._sender.send(self._client(chat.session), chat)

    async def _play_conversations(self, tasks: asyncio.TaskGroup) -> None:
        config = self._config
        requests = load_conversation()
        speed = config.conversation_speed or config.speed
        length_s = requests[-1].timestamp / 1_000 / speed
        started = time.monotonic()
        for generation in itertools.count():
            for request in requests:
                due = started + generation * length_s + request.timestamp / 1_000 / speed
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                scale = config.length_scale or CONVERSATION_SCALE
                chat = conversation_chat(request, generation=generation, seed=config.seed, scale=scale)
                client = self._client(f"conversation-{generation}-{request.conversation}")
                self._report.late += self._room.locked()
                await self._room.acquire()
                tasks.create_task(self._send_and_leave(client, chat))

    async def _send_and_leave(self, client: Client, chat: ChatTurn) -> None:
        try:
            await self._sender.send(client, chat)
        finally:
            self._room.release()

    async def _probe_isolation(self) -> None:
        """Now and then the same words for two tenants: the second must find nothing cached."""
        first, second = two_tenants(self._config.clients)
        for number in itertools.count():
            while self._report.requests * self._config.probe_share < number + 1:  # noqa: ASYNC110  a count, not an event
                await asyncio.sleep(PROBE_CHECK_S)
            chat = _probe(self._config.seed, number)
            async with self._room:
                if await self._sender.send(first, chat) is None:
                    continue
                answer = await self._sender.send(second, chat)
            if answer is not None and answer.cached_tokens is not None:
                self._report.isolation_probes += 1
                self._report.isolation_cached_tokens += answer.cached_tokens

    def _client(self, session: str) -> Client:
        return self._config.clients[weighted_choice(self._shares, key=session)]


def two_tenants(clients: list[Client]) -> tuple[Client, Client]:
    """The first client and the first of another tenant with the same model. Raises ValueError when there is none."""
    first = clients[0]
    for client in clients:
        if client.tenant != first.tenant and client.model == first.model:
            return first, client
    raise ValueError("isolation probes need clients of two tenants with one model")


async def run_traffic(config: TrafficConfig) -> dict[str, Any]:
    """Plays until the duration is over or SIGINT or SIGTERM comes; returns (and writes) the report."""
    report = TrafficReport()
    limits = httpx.Limits(max_connections=INFLIGHT_MAX, max_keepalive_connections=INFLIGHT_MAX)
    timeout = httpx.Timeout(ANSWER_S_MAX, connect=5.0)
    started = time.monotonic()
    async with httpx.AsyncClient(base_url=config.url, limits=limits, timeout=timeout, trust_env=False) as http:
        await _until_stopped(TrafficPlayer(config, http, report).play(), config.duration_s)
    summary = report.summary(time.monotonic() - started)
    if config.report is not None:
        config.report.write_bytes(msgspec.json.format(msgspec.json.encode(summary)))
    return summary


async def _until_stopped(play: Coroutine[Any, Any, None], duration_s: float | None) -> None:
    """Runs `play` up to the deadline or a signal. An error in it is raised."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(play)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        done, _ = await asyncio.wait([task], timeout=duration_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=not done)
    except asyncio.CancelledError:
        if not task.cancelled():
            raise
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _probe(seed: int, number: int) -> ChatTurn:
    unique = random.Random(f"{seed}/probe/{time.time_ns()}/{number}").getrandbits(60)  # noqa: S311  only unequal
    text = block_text(
        seed_of("probe", unique), np.arange(PROBE_BLOCKS, dtype=np.uint64), bytes_per_block=PROBE_BYTES_PER_BLOCK
    )
    return ChatTurn("", [{"role": "system", "content": text}, {"role": "user", "content": "go on"}], max_tokens=4)
