"""The routing core in exact mode: what each worker holds comes from its KV events, as far as they are followed.

The same as `router.adapters.exact_pool` and `exact_mode` make of prompts, without tokenizers and sockets: a worker
whose events are complete is matched by its own blocks, one whose events have a gap by what was sent there, and a fleet
of which nothing is known as without events. What a shared tier holds is known at once: it has no events of its own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence as Many

from router.contract.ids import WorkerId
from router.core.exact.block_index import BlockIndex, Holder, Match
from router.core.exact.event_stream import EventStream
from router.core.model import ExactMatch, ExactPrompt, Outcome, Reservation
from simulator.fleet.conditions import IDEAL, Conditions
from simulator.fleet.hardware import GpuProfile
from simulator.fleet.policy import WorkerView
from simulator.fleet.tidemark import Tidemark
from simulator.fleet.workload import BLOCK_TOKENS, Request

INDEX_BYTES_MAX = 512 * 1024 * 1024
"""The router's default."""
_NOTHING = Match(0)


class ExactTidemark(Tidemark):
    def __init__(
        self,
        workers: int,
        profile: GpuProfile,
        *,
        rng: random.Random,
        conditions: Conditions = IDEAL,
        block_tokens: int = BLOCK_TOKENS,
    ) -> None:
        super().__init__(workers, profile, rng=rng, conditions=conditions, block_tokens=block_tokens)
        self._blocks = BlockIndex(bytes_max=INDEX_BYTES_MAX)
        self._block_tokens = block_tokens
        capacity = profile.kv_capacity_tokens // block_tokens
        self._streams = [
            EventStream(
                self._blocks,
                Holder(worker),
                block_size_tokens=block_tokens,
                capacity_blocks=capacity,
                replayable=conditions.event_replay,
            )
            for worker in self.workers
        ]

    def followers(self) -> Many[Many[EventStream]]:
        return [self._streams]

    def exact(self, request: Request, workers: list[WorkerView], now: float) -> ExactPrompt | None:
        known = [worker for worker in self.workers if self._blocks.is_exact(worker, now=now)]
        if not known:
            return None
        hashes = request.chain[: request.prompt_tokens // request.block_tokens]
        matches = self._matches(hashes, known, now)
        tier = workers[0].engine.tier
        if tier is not None:
            for worker in known:
                held = matches.get(worker, _NOTHING).device
                stored = tier.longest_prefix(hashes, held, len(hashes))
                if stored > held:
                    matches[worker] = Match(held, remote=stored - held)
        size = self._block_tokens
        told = {worker: ExactMatch(match.device * size, 0, match.remote * size) for worker, match in matches.items()}
        return ExactPrompt(request.prompt_tokens, hashes, told, frozenset(self.workers).difference(known))

    def _matches(self, hashes: Many[int], known: Many[WorkerId], now: float) -> dict[WorkerId, Match]:
        places = self._blocks.places_of(known)
        found: dict[WorkerId, Match] = {}
        for workers, match in self._blocks.worker_matches(hashes, places, now=now):
            found.update(dict.fromkeys(workers, match))
        return found

    def answered(self, reservation: Reservation, outcome: Outcome, now: float) -> None:
        """What the worker delivered is held against what its events let expect."""
        decision, cached, prompt = reservation.decision, outcome.cached_tokens, outcome.prompt_tokens
        if cached is None or prompt is None:
            return
        stream, exact = self._streams[self._index[decision.worker]], decision.request.exact
        stream.note_answer(computed_tokens=max(prompt - cached, 0), sent_at=reservation.reserved_at, now=now)
        if exact is not None and decision.worker not in exact.unknown:
            promised = decision.promised_tokens(cached)
            stream.judge(predicted_tokens=promised, delivered_tokens=cached, now=now)
