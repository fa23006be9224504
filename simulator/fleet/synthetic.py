"""A workload made from figures instead of a trace: shared heads of recorded popularity, each with a tail of its own.

Arrivals are Poisson. A request takes a head by its share of the recorded requests, then goes on with text nobody
repeats. `broken` of the requests have something changing in front: nothing of theirs can be hit. Head lengths are whole
blocks, so that a mean between two lengths is a mixture of both.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from simulator.fleet.demand import demand_s
from simulator.fleet.hardware import GpuProfile
from simulator.fleet.names import key_of, named, places
from simulator.fleet.workload import BLOCK_TOKENS, TEXT_BLOCK_TOKENS, Request

_TEXT_BLOCKS = BLOCK_TOKENS // TEXT_BLOCK_TOKENS


class SyntheticWorkload:
    """`head_blocks`: mean blocks of a head; `weights`: requests of each head, in any unit."""

    def __init__(
        self,
        profile: GpuProfile,
        *,
        requests: int,
        requests_per_s: float,
        prompt_tokens: int,
        output_tokens: int,
        head_blocks: float,
        weights: Sequence[float],
        broken: float,
        seed: int,
    ) -> None:
        rng = random.Random(f"synthetic/{seed}")  # noqa: S311  repeatable, no secret
        heads = _lengths(head_blocks, weights)
        chosen = rng.choices(range(len(weights)), weights, k=requests)
        now = 0.0
        self._requests = []
        for index, head in enumerate(chosen):
            now += rng.expovariate(requests_per_s)
            shared = 0 if rng.random() < broken else heads[head]
            self._requests.append(_request(index, now, head, shared, prompt_tokens, output_tokens))
        self.duration_s = now
        known = round(head_blocks)
        self.demand_s = demand_s(profile, prompt_tokens=prompt_tokens, output_tokens=output_tokens, known=known)

    def first(self) -> list[Request]:
        return self._requests

    def after(self, request: Request, finished_s: float) -> Request | None:
        return None


def _lengths(head_blocks: float, weights: Sequence[float]) -> list[int]:
    """Whole blocks of each head: heavy ones first get one more while the weighted mean allows it."""
    lengths = [int(head_blocks)] * len(weights)
    left = head_blocks % 1 * sum(weights)
    for index in sorted(range(len(weights)), key=lambda one: -weights[one]):
        if weights[index] <= left:
            lengths[index] += 1
            left -= weights[index]
    return lengths


def _request(index: int, at: float, head: int, shared: int, prompt_tokens: int, output_tokens: int) -> Request:
    whole = (prompt_tokens + output_tokens) // BLOCK_TOKENS
    fine = prompt_tokens // TEXT_BLOCK_TOKENS
    shared_fine = min(shared * _TEXT_BLOCKS, fine)
    head_key, own_key = ("head", head), ("own", index)
    chain = named(key_of(*head_key), places(0, shared)).tolist()
    chain += named(key_of(*own_key), places(shared, max(shared, whole))).tolist()
    hashes = named(key_of("text", *head_key), places(0, shared_fine)).tolist()
    hashes += named(key_of("text", *own_key), places(shared_fine, fine)).tolist()
    return Request(
        id=index, arrival_s=at, prompt_tokens=prompt_tokens, output_tokens=output_tokens, chain=chain,
        text_hashes=hashes, affinity=int(np.uint64(head)),
    )  # fmt: skip
