"""The engine of one worker: prefix cache and continuous batching with chunked prefill, as a plain state machine.

No clock, no randomness, no I/O: the driver passes the time in, asks for a step, waits as long as the step says and
then finishes it:

    step = engine.begin_step(now)          schedules, allocates, stores blocks; None = nothing to do
    outputs = engine.finish_step(step, now + step.duration_s)

Modelled after vLLM's v1 scheduler: running requests go first, each gets as many tokens as the batch has left;
waiting ones enter in order of arrival when the whole prompt fits into free blocks; a running request that finds no
block preempts the one that came last, which loses its KV and starts over (cached blocks help it). Blocks enter the
cache when they are scheduled, generated tokens included. A prompt is never fully cached: its last token is always
computed, so a prompt of whole blocks computes its last block again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from simulator import events
from simulator.cache import BlockCache
from simulator.events import KvEvent
from simulator.hashing import BlockDigest, event_hash, extend_chain
from simulator.timing import KV_BLOCKS, StepCost
from simulator.tokens import spoken_token

NO_DIGEST_SEED = 17
"""Seeds the answer to a prompt shorter than one block."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    blocks: int = KV_BLOCKS
    block_size_tokens: int = 16
    max_num_seqs: int = 256
    """vLLM's default for a server on large GPUs is 256 to 1,024."""
    max_num_batched_tokens: int = 8_192
    max_model_len: int = 131_072


@dataclass(slots=True)
class Sequence:
    """One prompt being answered. `tokens` is the prompt and, behind it, the answer so far."""

    id: str
    tokens: list[int]
    prompt_tokens: int
    max_tokens: int
    salt: str | None
    arrived_at: float
    stops: bool = False
    """Ends with `stop` (the model was done) instead of `length`."""
    digests: list[BlockDigest] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    stored_blocks: int = 0
    computed_tokens: int = 0
    cached_tokens: int | None = None
    """Prompt tokens found in the cache at first admission; None while waiting."""
    scheduled_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    preemptions: int = 0
    aborted: bool = False
    keeps: bool = False
    """Its blocks stay pinned when it is done, until `Engine.free`: another worker may pull them."""
    pulled: bool = False
    """The KV of its whole prompt came from another worker: only the last token is computed."""

    @property
    def output_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens


@dataclass(slots=True)
class Step:
    """What one step computes: (sequence, new tokens), and what the cache did on the way."""

    work: list[tuple[Sequence, int]]
    duration_s: float
    events: list[KvEvent]
    admitted: list[Sequence]
    """Scheduled for the first time."""
    preempted: int = 0

    @property
    def tokens(self) -> int:
        return sum(count for _, count in self.work)


@dataclass(frozen=True, slots=True)
class TokenOut:
    """One generated token; `finish_reason` on the last."""

    sequence: Sequence
    token: int
    finish_reason: str | None
    since_last_s: float | None
    """Inter-token latency; None for the first token."""


@dataclass(slots=True)
class EngineCounts:
    """Totals since start, in the units of the worker's metrics."""

    queried_tokens: int = 0
    hit_tokens: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0


class Engine:
    def __init__(self, limits: EngineLimits | None = None, cost: StepCost | None = None) -> None:
        self.limits = limits or EngineLimits()
        self.cost = cost or StepCost()
        self.cache = BlockCache(self.limits.blocks)
        self.counts = EngineCounts()
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises ValueError when it could never fit; `max_tokens` is clamped to the model."""
        room = self.limits.max_model_len - sequence.prompt_tokens
        if sequence.prompt_tokens < 1 or room < 1:
            raise ValueError(f"prompt of {sequence.prompt_tokens} tokens does not fit {self.limits.max_model_len}")
        fits = self.cache.capacity_blocks * self.limits.block_size_tokens - sequence.prompt_tokens
        if fits < 1:
            raise ValueError(f"prompt of {sequence.prompt_tokens} tokens does not fit the KV cache")
        sequence.max_tokens = min(sequence.max_tokens, room, fits)
        extend_chain(
            sequence.digests, sequence.tokens, block_size_tokens=self.limits.block_size_tokens, salt=sequence.salt
        )
        self.waiting.append(sequence)

    def abort(self, sequence: Sequence) -> None:
        """The client left: its blocks are freed at the next step boundary."""
        sequence.aborted = True

    def free(self, sequence: Sequence, now: float) -> None:
        """Give the blocks of a kept sequence back. Safe to call twice, and while it runs, which then keeps nothing."""
        sequence.keeps = False
        if sequence not in self.running:
            self._give_back_blocks(sequence, now)

    def begin_step(self, now: float) -> Step | None:
        self._drop_aborted(now)
        work: list[tuple[Sequence, int]] = []
        budget, preempted = self._schedule_running(work, now)
        if preempted == 0:
            self._admit_waiting(work, budget, now)
        taken = self.cache.take_events()
        if not work:
            for event in taken:
                self.cache.record(event)
            return None
        admitted = [sequence for sequence, _ in work if sequence.scheduled_at == now]
        duration_s = self._duration_s(work)
        return Step(work=work, duration_s=duration_s, events=taken, admitted=admitted, preempted=preempted)

    def finish_step(self, step: Step, now: float) -> list[TokenOut]:
        """Apply the step's results: sequences whose tokens are all computed say one more."""
        outputs: list[TokenOut] = []
        for sequence, count in step.work:
            if sequence.aborted or not sequence.blocks:
                continue
            sequence.computed_tokens += count
            if sequence.computed_tokens == len(sequence.tokens):
                outputs.append(self._speak(sequence, now))
        self._drop_aborted(now)
        return outputs

    # scheduling, in call order

    def _drop_aborted(self, now: float) -> None:
        for sequence in [s for s in self.running if s.aborted]:
            self._finish(sequence, now)
        if any(s.aborted for s in self.waiting):
            self.waiting = deque(s for s in self.waiting if not s.aborted)

    def _schedule_running(self, work: list[tuple[Sequence, int]], now: float) -> tuple[int, int]:
        """Fill `work` from the running ones; (tokens left in the batch, sequences preempted)."""
        budget = self.limits.max_num_batched_tokens
        preempted = 0
        index = 0
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            count = min(len(sequence.tokens) - sequence.computed_tokens, budget)
            while not self._grow(sequence, count, now):
                victim = self.running.pop()
                self._preempt(victim, now)
                preempted += 1
                if victim is sequence:
                    break
            else:
                work.append((sequence, count))
                budget -= count
                index += 1
        return budget, preempted

    def _admit_waiting(self, work: list[tuple[Sequence, int]], budget: int, now: float) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.limits.max_num_seqs:
            sequence = self.waiting[0]
            if not self._enter(sequence, now):
                return
            self.waiting.popleft()
            self.running.append(sequence)
            count = min(len(sequence.tokens) - sequence.computed_tokens, budget)
            if not self._grow(sequence, count, now):
                raise AssertionError("admission checked that the whole prompt fits")
            work.append((sequence, count))
            budget -= count

    def _enter(self, sequence: Sequence, now: float) -> bool:
        """Pin the longest cached prefix; False and no change when the rest of the prompt has no room."""
        size = self.limits.block_size_tokens
        hit = self.cache.longest_prefix(sequence.digests[: (len(sequence.tokens) - 1) // size])
        needed = -(-len(sequence.tokens) // size) - len(hit)
        left = self.cache.free_blocks - sum(1 for block in hit if self.cache.is_free(block))
        if needed > left:
            return False
        self.cache.pin(hit, now=now)
        sequence.blocks = list(hit)
        sequence.stored_blocks = len(hit)
        sequence.computed_tokens = len(hit) * size
        if sequence.cached_tokens is None:
            self._count_admission(sequence, sequence.computed_tokens, now)
        if sequence.pulled:
            sequence.computed_tokens = len(sequence.tokens) - 1
        return True

    def _count_admission(self, sequence: Sequence, cached_tokens: int, now: float) -> None:
        """Like vLLM's counters, a sequence counts once: an entry after a preemption is not a query."""
        sequence.cached_tokens = cached_tokens
        sequence.scheduled_at = now
        self.counts.queried_tokens += sequence.prompt_tokens
        self.counts.hit_tokens += cached_tokens

    def _grow(self, sequence: Sequence, count: int, now: float) -> bool:
        """Blocks for `count` more tokens, the whole ones stored; False and no change when there is no room."""
        size = self.limits.block_size_tokens
        reach = sequence.computed_tokens + count
        missing = -(-reach // size) - len(sequence.blocks)
        if missing > self.cache.free_blocks:
            return False
        sequence.blocks += self.cache.allocate(missing, now=now)
        self._store_whole_blocks(sequence, reach // size, now)
        return True

    def _store_whole_blocks(self, sequence: Sequence, upto: int, now: float) -> None:
        first = sequence.stored_blocks
        if upto <= first:
            return
        size = self.limits.block_size_tokens
        extend_chain(sequence.digests, sequence.tokens, block_size_tokens=size, salt=sequence.salt)
        for index in range(first, upto):
            self.cache.store(sequence.blocks[index], sequence.digests[index], now=now)
        sequence.stored_blocks = upto
        self.cache.record(
            events.stored(
                hashes=[event_hash(digest) for digest in sequence.digests[first:upto]],
                parent=event_hash(sequence.digests[first - 1]) if first else None,
                token_ids=sequence.tokens[first * size : upto * size],
                block_size_tokens=size,
                first_salt=sequence.salt,
            )
        )

    def _preempt(self, sequence: Sequence, now: float) -> None:
        self._give_back_blocks(sequence, now)
        sequence.pulled = False
        sequence.preemptions += 1
        self.counts.preemptions += 1
        self.waiting.appendleft(sequence)

    def _duration_s(self, work: list[tuple[Sequence, int]]) -> float:
        prefills = [(s.computed_tokens, count) for s, count in work if count > 1 or s.output_tokens == 0]
        decodes = [s.computed_tokens for s, count in work if count == 1 and s.output_tokens > 0]
        return self.cost.step_s(prefills=prefills, decode_contexts=decodes)

    def _speak(self, sequence: Sequence, now: float) -> TokenOut:
        seed = int.from_bytes(sequence.digests[0][:8], "big") if sequence.digests else NO_DIGEST_SEED
        token = spoken_token(seed + sequence.prompt_tokens, sequence.output_tokens)
        since_last_s = None if sequence.last_token_at is None else now - sequence.last_token_at
        if sequence.first_token_at is None:
            sequence.first_token_at = now
            self.counts.prompt_tokens += sequence.prompt_tokens
        sequence.last_token_at = now
        sequence.tokens.append(token)
        self.counts.generated_tokens += 1
        finish_reason = None
        if sequence.output_tokens >= sequence.max_tokens:
            finish_reason = "stop" if sequence.stops else "length"
            self._finish(sequence, now)
        return TokenOut(sequence, token, finish_reason, since_last_s)

    def _finish(self, sequence: Sequence, now: float) -> None:
        self.running.remove(sequence)
        if not sequence.keeps or sequence.aborted:
            self._give_back_blocks(sequence, now)

    def _give_back_blocks(self, sequence: Sequence, now: float) -> None:
        self.cache.release(sequence.blocks, now=now)
        sequence.blocks = []
        sequence.stored_blocks = 0
        sequence.computed_tokens = 0
