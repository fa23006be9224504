"""The conversation trace, open loop: requests come when the trace says, its clock scaled to the load.

A seed picks the window of the trace and spreads each arrival over the trace's 3 s grain.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from simulator.fleet.demand import demand_s, known_blocks
from simulator.fleet.hardware import GpuProfile
from simulator.fleet.names import BlockName, key_of, named, places
from simulator.fleet.workload import BLOCK_TOKENS, TEXT_BLOCK_TOKENS, Request
from simulator.replay import ConversationRequest

TIMESTAMP_GRAIN_S = 3.0
_TEXT_BLOCKS = BLOCK_TOKENS // TEXT_BLOCK_TOKENS


class ConversationWorkload:
    def __init__(
        self,
        trace: Sequence[ConversationRequest],
        profile: GpuProfile,
        *,
        workers: int,
        load: float,
        requests: int,
        seed: int,
    ) -> None:
        """Raises ValueError when the trace has fewer requests."""
        if requests > len(trace):
            raise ValueError(f"the conversation trace has {len(trace)} requests, fewer than {requests}")
        rng = random.Random(f"conversation/{seed}")  # noqa: S311  repeatable, no secret
        first = rng.randrange(len(trace) - requests + 1)
        window = [row for row in trace[first : first + requests] if row.input_length < profile.kv_capacity_tokens / 2]
        following = _following(window)
        self._requests = [_request(index, row, following[index]) for index, row in enumerate(window)]
        self.demand_s = _mean_demand_s(self._requests, profile)
        self.duration_s = len(window) * self.demand_s / (load * workers)
        times = [row.timestamp / 1_000 + rng.random() * TIMESTAMP_GRAIN_S for row in window]
        scale = self.duration_s / (max(times) - min(times))
        for request, time in zip(self._requests, times, strict=True):
            request.arrival_s = (time - min(times)) * scale

    def first(self) -> list[Request]:
        return self._requests

    def after(self, request: Request, finished_s: float) -> Request | None:
        return None


def _following(rows: Sequence[ConversationRequest]) -> list[ConversationRequest | None]:
    """For each request the next one that repeats all its whole blocks and has room for its answer."""
    following: list[ConversationRequest | None] = [None] * len(rows)
    holder: dict[int, ConversationRequest] = {}
    for index in range(len(rows) - 1, -1, -1):
        row = rows[index]
        whole = row.input_length // BLOCK_TOKENS
        if whole >= 2:  # block 0 is common to all: it tells nothing
            later = holder.get(row.hash_ids[whole - 1])
            if later is not None and later.input_length >= row.input_length + row.output_length:
                following[index] = later
        holder.update(dict.fromkeys(row.hash_ids[:whole], row))
    return following


def _request(index: int, row: ConversationRequest, following: ConversationRequest | None) -> Request:
    key = key_of("conversation")
    ids = np.array(row.hash_ids, dtype=np.uint64)
    whole = row.input_length // BLOCK_TOKENS
    after = (row.input_length + row.output_length) // BLOCK_TOKENS
    chain = named(key, ids[:whole]).tolist()
    if following is not None:
        rest = following.hash_ids[whole : min(after, following.input_length // BLOCK_TOKENS)]
        chain += named(key, np.array(rest, dtype=np.uint64)).tolist()
    chain += named(key_of("answer", index), places(len(chain), after)).tolist()
    fine = np.add.outer(ids * np.uint64(_TEXT_BLOCKS), places(0, _TEXT_BLOCKS)).ravel()
    hashes = named(key_of("conversation text"), fine[: row.input_length // TEXT_BLOCK_TOKENS])
    return Request(
        id=index,
        arrival_s=0.0,
        prompt_tokens=row.input_length,
        output_tokens=row.output_length,
        chain=chain,
        text_hashes=hashes.tolist(),
        affinity=row.conversation,
    )


def _mean_demand_s(requests: Sequence[Request], profile: GpuProfile) -> float:
    seen: set[BlockName] = set()
    total_s = 0.0
    for request in requests:
        known = known_blocks(request.chain, request.hittable_blocks, seen)
        total_s += demand_s(
            profile, prompt_tokens=request.prompt_tokens, output_tokens=request.output_tokens, known=known
        )
    return total_s / len(requests)
