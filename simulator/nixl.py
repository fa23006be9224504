"""KV handed from one simulated worker to another, in the words of vLLM 0.32's NIXL connector (`--nixl`).

    source   "kv_transfer_params": {"do_remote_decode": true}  → an answer with an offer; its blocks stay pinned, 30 s
    puller   the offer as its "kv_transfer_params"             → fetches them, computes the last token alone

Like a real one, a source asks for no salt: who holds the offer gets the KV. An offer is good for one pull. The side
channel is the worker's own port (`/sim/kv`), and a pull takes as long as its bytes do over a modelled link.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from simulator.engine import Sequence
from simulator.requests import RefusedRequest, invalid

LEASE_S = 30.0
"""vLLM's `kv_lease_duration`: so long an offer's blocks wait for a pull."""
OFFERS_MAX = 256
"""Offers at once: the blocks of the oldest go beyond it."""
KV_BYTES_PER_TOKEN = 262_144
"""64 layers × 8 heads × 128 × 2 (K, V) × 2 bytes (`simulator/timing.py`)."""
LINK_BYTES_PER_S = 20 * 1024**3
HANDSHAKE_S = 5.0
"""As long a real worker waits for another one's side channel."""


class Params(msgspec.Struct):
    """`kv_transfer_params` as far as a worker reads them."""

    do_remote_decode: bool = False
    do_remote_prefill: bool = False
    remote_engine_id: str = ""
    remote_request_id: str = ""
    remote_host: str = ""
    remote_port: int = 0
    remote_prefill_cached_tokens: int | None = None


class TransferFailed(Exception):
    """The KV did not come, and with vLLM's default policy the request fails."""


@dataclass(frozen=True, slots=True)
class _Offer:
    sequence: Sequence
    ends_at: float


def params_of(given: object) -> Params:
    """Raises RefusedRequest."""
    try:
        return msgspec.convert(given, Params)
    except msgspec.ValidationError as error:
        raise invalid("dict_type", "body.kv_transfer_params", str(error)) from None


class Handover:
    def __init__(
        self, *, engine_id: str, host: str, port: int, free: Callable[[Sequence], None], time_scale: float
    ) -> None:
        """`free` gives a kept sequence's blocks back."""
        self._engine_id = engine_id
        self._host = host
        self._port = port
        self._free = free
        self._time_scale = time_scale
        self._offers: dict[str, _Offer] = {}
        self.pulled_tokens = 0

    def offer(self, request_id: str, sequence: Sequence) -> dict[str, Any]:
        """What another worker needs to pull the sequence's KV."""
        self.expire()
        self._give_back(request_id)
        while len(self._offers) >= OFFERS_MAX:
            self._give_back(next(iter(self._offers)))
        self._offers[request_id] = _Offer(sequence, time.monotonic() + LEASE_S)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(sequence.blocks)],
            "remote_engine_id": self._engine_id,
            "remote_request_id": request_id,
            "remote_host": self._host,
            "remote_port": self._port,
            "tp_size": 1,
            "remote_prefill_cached_tokens": sequence.cached_tokens,
        }

    def give(self, engine_id: str, request_id: str) -> int | None:
        """Tokens of an offer that is being pulled, None for one that is not there; its blocks go."""
        self.expire()
        offer = self._offers.get(request_id) if engine_id == self._engine_id else None
        if offer is None:
            return None
        tokens = offer.sequence.prompt_tokens
        self._give_back(request_id)
        return tokens

    def expire(self) -> None:
        now = time.monotonic()
        for request_id in [name for name, offer in self._offers.items() if offer.ends_at <= now]:
            self._give_back(request_id)

    async def pull(self, params: Params, prompt_tokens: int) -> None:
        """Raises TransferFailed."""
        url = f"http://{params.remote_host}:{params.remote_port}/sim/kv"
        query = {"engine": params.remote_engine_id, "request": params.remote_request_id}
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=HANDSHAKE_S) as client:
                answer = await client.post(url, params=query)
        except (httpx.HTTPError, httpx.InvalidURL):
            raise TransferFailed("no handshake with the worker that offered it") from None
        if answer.status_code != 200 or answer.json()["tokens"] != prompt_tokens:
            raise TransferFailed("the offer leads nowhere")
        await asyncio.sleep(prompt_tokens * KV_BYTES_PER_TOKEN / LINK_BYTES_PER_S / self._time_scale)
        self.pulled_tokens += prompt_tokens

    def _give_back(self, request_id: str) -> None:
        offer = self._offers.pop(request_id, None)
        if offer is not None:
            self._free(offer.sequence)


def load_failed() -> RefusedRequest:
    return RefusedRequest(500, "KV load failed", kind="InternalServerError")
