"""The reference: greedy by true time to first token. No router could know what it knows."""

from __future__ import annotations

from simulator.fleet.engine import FleetEngine, Sequence
from simulator.fleet.policy import Choice, Policy, WorkerView
from simulator.fleet.workload import Request


class GreedyOracle(Policy):
    """The worker that would answer this request first, from its cache, its true work ahead and its decoding sequences.

    Greedy: it does not weigh what the choice costs others, so a rule that does can be better.
    """

    def choose(self, request: Request, workers: list[WorkerView], now: float) -> Choice:
        times = [(ttft_s(worker.engine, request, now), worker.outstanding, worker.index) for worker in workers]
        return Choice(min(times)[2])


def ttft_s(engine: FleetEngine, request: Request, now: float) -> float:
    """Predicted time to first token: rest of the step under way, prefill ahead and own, steps' decode work, room."""
    profile = engine.profile
    under_way_s = max(0.0, engine.due_s - now) if engine.step_prefills else 0.0
    cached = engine.cache.longest_prefix(request.chain, request.hittable_blocks)
    own_tokens = request.prompt_tokens - cached * engine.block_tokens
    ahead_s, ahead_tokens = _ahead(engine)
    own_s = profile.prefill_s(own_tokens, context_tokens=cached * engine.block_tokens)
    steps = -(-(ahead_tokens + own_tokens) // profile.max_num_batched_tokens)
    return under_way_s + ahead_s + own_s + steps * engine.decode_step_s() + _wait_for_room_s(engine, request, cached)


def _ahead(engine: FleetEngine) -> tuple[float, int]:
    """Prefill not yet begun of the sequences before this one: seconds and tokens."""
    total_s, tokens = 0.0, 0
    for sequence in [*engine.prefilling, *engine.waiting]:
        left, context = _left(engine, sequence)
        total_s += engine.profile.prefill_s(left, context_tokens=context)
        tokens += left
    return total_s, tokens


def _left(engine: FleetEngine, sequence: Sequence) -> tuple[int, int]:
    """Uncached tokens a sequence has yet to begin, and its context before them."""
    context = sequence.computed_tokens + engine.scheduled_tokens(sequence)
    if not sequence.held_blocks:
        context = engine.block_tokens * engine.cache.longest_prefix(
            sequence.request.chain, (sequence.total_tokens - 1) // engine.block_tokens
        )
    return sequence.total_tokens - context, context


def _wait_for_room_s(engine: FleetEngine, request: Request, cached: int) -> float:
    """Decode time until enough sequences ended for this prompt, and those waiting before it, to fit."""
    needed = -(-request.prompt_tokens // engine.block_tokens) - cached
    needed += sum(-(-sequence.total_tokens // engine.block_tokens) for sequence in engine.waiting)
    missing = needed - engine.cache.available_blocks
    if missing <= 0:
        return 0.0
    for left, held in sorted(
        (engine.remaining_output_tokens(sequence), sequence.held_blocks) for sequence in engine.decoding
    ):
        missing -= held
        if missing <= 0:
            return left * engine.decode_step_s()
    return engine.decode_step_s() * max(map(engine.remaining_output_tokens, engine.decoding), default=0)
