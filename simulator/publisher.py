"""The worker's KV-event sockets: a PUB for live batches and a ROUTER that replays the last ones.

Live frames are [topic, sequence number as 8 bytes big-endian, msgpack of the batch], numbered from 0 at every start.
A replay client sends ["", start number] and gets ["", topic, number, payload] for each batch still kept, then
["", "", ff×8, ""]. Only the last `buffer_steps` batches are kept, and nothing tells a client what is missing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

import msgspec
import zmq
import zmq.asyncio

from simulator.events import EventBatch, KvEvent

log = logging.getLogger(__name__)

BUFFER_STEPS = 10_000
HIGH_WATER_MARK_MESSAGES = 100_000
END_OF_REPLAY = b"\xff" * 8


class EventPublisher:
    def __init__(self, *, host: str, port: int, replay_port: int, topic: str, buffer_steps: int = BUFFER_STEPS) -> None:
        """Binds both sockets; raises zmq.ZMQError when a port is in use."""
        self.endpoint = f"tcp://{host}:{port}"
        self.replay_endpoint = f"tcp://{host}:{replay_port}"
        self.topic = topic
        self.buffer_steps = buffer_steps
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=buffer_steps)
        self._next_number = 0
        self._encoder = msgspec.msgpack.Encoder()
        self._context = zmq.asyncio.Context()
        self._live = zmq.Socket(zmq.Context(self._context), zmq.PUB)
        self._live.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK_MESSAGES)
        self._live.setsockopt(zmq.LINGER, 0)
        self._live.bind(self.endpoint)
        self._replay = self._context.socket(zmq.ROUTER)
        self._replay.setsockopt(zmq.LINGER, 0)
        self._replay.bind(self.replay_endpoint)

    def sources(self) -> dict[str, object]:
        """The answer of `/kv_event_sources`."""
        return {
            "0": {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": self.endpoint,
                "replay_endpoint": self.replay_endpoint,
                "buffer_steps": self.buffer_steps,
                "hwm": HIGH_WATER_MARK_MESSAGES,
                "max_queue_size": HIGH_WATER_MARK_MESSAGES,
                "topic": self.topic,
            }
        }

    def publish(self, events: list[KvEvent], *, at: float, lost: Callable[[], bool]) -> None:
        """Number, keep and send one batch; a batch that `lost` says yes to can only be had by replay."""
        payload = self._encoder.encode(EventBatch(ts=at, events=events))
        number = self._next_number.to_bytes(8, "big")
        self._next_number += 1
        self._kept.append((number, payload))
        if not lost():
            self._live.send_multipart([self.topic.encode(), number, payload], zmq.NOBLOCK)

    async def serve_replays(self) -> None:
        """Answer replay requests until cancelled."""
        while True:
            frames = await self._replay.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != 8:
                log.warning("replay request ignored: %d frames", len(frames))
                continue
            await self._answer(frames[0], int.from_bytes(frames[2], "big"))

    async def _answer(self, client: bytes, start: int) -> None:
        topic = self.topic.encode()
        for number, payload in list(self._kept):
            if int.from_bytes(number, "big") >= start:
                await self._replay.send_multipart([client, b"", topic, number, payload])
                await asyncio.sleep(0)
        await self._replay.send_multipart([client, b"", b"", END_OF_REPLAY, b""])

    def close(self) -> None:
        self._live.close()
        self._replay.close()
        self._context.term()
