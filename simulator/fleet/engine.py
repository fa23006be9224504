"""One worker between events: the scheduler of `simulator/engine.py`, with runs of pure decode steps taken at once.

Steps that prefill are simulated one by one, as there: running sequences first, prompts in chunks of the batch budget,
waiting ones in order of arrival when the whole prompt fits, preemption of the last come. While nothing prefills, every
step adds one token to each sequence, so k steps take

    k × (base + n × per sequence + C × per context token) + n × per context token × k (k − 1) ÷ 2

with n sequences of C tokens in all; a run ends where a sequence finishes, needs a block or a request arrives (then at
the end of the step under way). Cost: O(log n) an event and O(blocks) a request, whatever the output's length.

Approximations beside `simulator/engine.py`: blocks of BLOCK_TOKENS instead of 16 tokens (a running sequence wastes half
of one on average: 15 sequences of 440k tokens' capacity, under 1 %); equal blocks computed twice at once are held once;
a decoded block gets its name with the next block, not with its last token.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from dataclasses import dataclass, field

from simulator.fleet.cache import PrefixCache
from simulator.fleet.hardware import GpuProfile
from simulator.fleet.tier import SharedTier
from simulator.fleet.workload import BLOCK_TOKENS, Request


@dataclass(slots=True, eq=False)
class Sequence:
    """A request on a worker."""

    request: Request
    cached_tokens: int | None = None
    """Found in the cache at first admission; None while waiting."""
    first_token_s: float | None = None
    computed_tokens: int = 0
    """Before `joined_step` for a decoding sequence."""
    produced_tokens: int = 0
    """Before `joined_step` for a decoding sequence."""
    joined_step: int | None = None
    """The worker's decode step at which it began to decode; None while it prefills or waits."""
    held_blocks: int = 0
    named_blocks: int = 0
    duplicates: int = 0
    """Named blocks that another one of equal name already stood for."""
    order: int = 0
    """Of admission: the last is preempted first."""
    preemptions: int = 0
    pending_tokens: int = 0
    """Uncached prompt tokens as of its arrival."""
    loaded_tokens: int = 0
    """Of the cached ones, from the shared tier."""

    @property
    def total_tokens(self) -> int:
        """To be computed before the next token can be said."""
        return self.request.prompt_tokens + self.produced_tokens

    @property
    def left_tokens(self) -> int:
        return self.total_tokens - self.computed_tokens


@dataclass(slots=True)
class Happened:
    """What the end of a step or a run of steps brought."""

    first_tokens: list[Sequence] = field(default_factory=list)
    finished: list[Sequence] = field(default_factory=list)


class FleetEngine:
    def __init__(
        self,
        profile: GpuProfile,
        *,
        block_tokens: int = BLOCK_TOKENS,
        cache: PrefixCache | None = None,
        tier: SharedTier | None = None,
    ) -> None:
        """`cache`: an empty one of another kind, of the profile's capacity."""
        self.profile = profile
        self.block_tokens = block_tokens
        self.cache = cache or PrefixCache(profile.kv_capacity_tokens // block_tokens)
        self.tier = tier
        self.waiting: deque[Sequence] = deque()
        self.prefilling: list[Sequence] = []
        self.decoding: set[Sequence] = set()
        self.prefilled_tokens = 0
        self.preemptions = 0
        self.busy_s = 0.0
        self._step = 0
        """Decode steps completed."""
        self._context_tokens = 0
        """Computed tokens of all decoding sequences."""
        self._marks: list[tuple[int, int, Sequence, int]] = []
        """(decode step, order, sequence, its joined_step): when it finishes or needs a block; stale if it left."""
        self._order = itertools.count()
        self._began_s = 0.0
        self._ends_s = math.inf
        self._chunks: list[tuple[Sequence, int]] = []
        self._run_steps = 0
        self._loading_s = 0.0
        """From the shared tier, for the step to begin."""

    @property
    def due_s(self) -> float:
        """When the step or run under way ends; infinite while idle."""
        return self._ends_s

    @property
    def running(self) -> int:
        return len(self.prefilling) + len(self.decoding)

    def add(self, request: Request, now: float) -> Sequence:
        """Queue a request. Raises ValueError when it could never fit."""
        needed = -(-(request.prompt_tokens + request.output_tokens) // self.block_tokens)
        if request.prompt_tokens < 1 or needed > self.cache.capacity_blocks:
            raise ValueError(f"request of {request.prompt_tokens} + {request.output_tokens} tokens does not fit")
        sequence = Sequence(request)
        self.waiting.append(sequence)
        if self._ends_s == math.inf:
            self._begin(now)
        elif not self._chunks:
            self._cut_run(now)
        return sequence

    def finish_step(self, now: float) -> Happened:
        """The step or run under way ended at `now` = `due_s`; begins the next one."""
        happened = Happened()
        self.busy_s += now - self._began_s
        self._step += self._run_steps
        self._context_tokens += self._run_steps * len(self.decoding)
        self._finish_decoded(happened)
        self._finish_chunks(happened, now)
        self._begin(now)
        return happened

    def die(self, now: float) -> list[Sequence]:
        """Lose everything but the counts; the requests that were under way, in order of arrival."""
        if self._ends_s != math.inf:
            self.busy_s += max(0.0, min(now, self._ends_s) - self._began_s)
        lost = [*self.prefilling, *self.decoding, *self.waiting]
        self.cache.clear()
        for queue in (self.waiting, self.prefilling, self.decoding, self._marks, self._chunks):
            queue.clear()
        self._context_tokens = self._run_steps = 0
        self._ends_s = math.inf
        return sorted(lost, key=lambda each: (each.request.arrival_s, each.request.id))

    @property
    def step_prefills(self) -> bool:
        """Whether the step under way computes prompts: a run of decode steps would end for an arrival."""
        return bool(self._chunks)

    def scheduled_tokens(self, sequence: Sequence) -> int:
        """Prompt tokens of a sequence in the step under way."""
        return sum(count for each, count in self._chunks if each is sequence)

    def remaining_output_tokens(self, sequence: Sequence) -> int:
        """What a sequence has yet to say (known to the oracle only)."""
        said = sequence.produced_tokens
        if sequence.joined_step is not None:
            said += self._step - sequence.joined_step
        return sequence.request.output_tokens - said

    def decode_step_s(self) -> float:
        """A step of the sequences that decode, without any prefill."""
        profile = self.profile
        return (
            profile.decode_base_s
            + len(self.decoding) * profile.decode_sequence_s
            + self._context_tokens * profile.decode_context_token_s
        )

    # the end of a step, in call order

    def _finish_decoded(self, happened: Happened) -> None:
        for sequence in self._due_marks():
            if self.remaining_output_tokens(sequence) <= 0:
                self._leave(sequence)
                happened.finished.append(sequence)
            else:
                self._mark(sequence)

    def _due_marks(self) -> list[Sequence]:
        due: list[Sequence] = []
        while self._marks and self._marks[0][0] <= self._step:
            _, _, sequence, joined_step = heapq.heappop(self._marks)
            if sequence.joined_step == joined_step:
                due.append(sequence)
        return due

    def _finish_chunks(self, happened: Happened, now: float) -> None:
        for sequence, count in self._chunks:
            sequence.computed_tokens += count
            if sequence.left_tokens:
                continue
            self.prefilling.remove(sequence)
            if self.tier is not None:
                self.tier.store(sequence.request.chain, sequence.named_blocks)
            sequence.produced_tokens += 1
            if sequence.first_token_s is None:
                sequence.first_token_s = now
                happened.first_tokens.append(sequence)
            if sequence.produced_tokens >= sequence.request.output_tokens:
                self._give_back(sequence)
                happened.finished.append(sequence)
            else:
                self._join(sequence)
        self._chunks = []

    def _join(self, sequence: Sequence) -> None:
        sequence.joined_step = self._step
        self.decoding.add(sequence)
        self._context_tokens += sequence.computed_tokens
        self._mark(sequence)

    def _mark(self, sequence: Sequence) -> None:
        """Remember when the sequence finishes or needs its next block, whichever is first."""
        assert sequence.joined_step is not None
        to_finish = self.remaining_output_tokens(sequence)
        room = sequence.held_blocks * self.block_tokens - self._computed(sequence)
        step = self._step + min(to_finish, room)
        heapq.heappush(self._marks, (step, sequence.order, sequence, sequence.joined_step))

    def _computed(self, sequence: Sequence) -> int:
        if sequence.joined_step is None:
            return sequence.computed_tokens
        return sequence.computed_tokens + self._step - sequence.joined_step

    def _leave(self, sequence: Sequence) -> None:
        """Stop decoding and free the blocks, the last whole ones named before."""
        computed = self._computed(sequence)
        self.decoding.remove(sequence)
        self._context_tokens -= computed
        assert sequence.joined_step is not None
        sequence.produced_tokens += self._step - sequence.joined_step
        sequence.joined_step = None
        self._name_whole(sequence, computed)
        self._give_back(sequence)

    def _give_back(self, sequence: Sequence) -> None:
        nameless = sequence.held_blocks - sequence.named_blocks + sequence.duplicates
        self.cache.release(sequence.request.chain, sequence.named_blocks, nameless=nameless)
        if self.tier is not None:
            self.tier.store(sequence.request.chain, sequence.named_blocks)
        sequence.held_blocks = sequence.named_blocks = sequence.duplicates = sequence.computed_tokens = 0

    # the beginning of a step, in call order

    def _begin(self, now: float) -> None:
        preempted = self._grow_decoding()
        budget = self.profile.max_num_batched_tokens - len(self.decoding)
        budget, more = self._schedule_prefilling(budget)
        if not preempted + more:
            self._admit_waiting(budget)
        self._began_s = now
        if not self._chunks and not self.decoding:
            self._ends_s, self._run_steps = math.inf, 0
            return
        self._run_steps = 1 if self._chunks else self._steps_to_next_mark()
        self._ends_s = now + self._run_s(self._run_steps) + self._chunks_s() + self._loading_s
        self._loading_s = 0.0

    def _grow_decoding(self) -> int:
        """A block for each decoding sequence whose last one is full; returns how many were preempted for it."""
        preempted = 0
        for _, _, sequence, joined_step in self._full_blocks():
            while sequence.joined_step == joined_step and not self._grow(sequence, 1):
                self._preempt_last()
                preempted += 1
            if sequence.joined_step == joined_step:
                self._mark(sequence)
        return preempted

    def _full_blocks(self) -> list[tuple[int, int, Sequence, int]]:
        due: list[tuple[int, int, Sequence, int]] = []
        while self._marks and self._marks[0][0] <= self._step:
            due.append(heapq.heappop(self._marks))
        return [mark for mark in due if mark[2].joined_step == mark[3]]

    def _schedule_prefilling(self, budget: int) -> tuple[int, int]:
        preempted = index = 0
        while index < len(self.prefilling) and budget > 0:
            sequence = self.prefilling[index]
            count = min(sequence.left_tokens, budget)
            grown = self._grow(sequence, count)
            while not grown:
                preempted += 1
                if self._preempt_last() is sequence:
                    break
                grown = self._grow(sequence, count)
            if grown:
                self._chunks.append((sequence, count))
                budget -= count
                index += 1
        return budget, preempted

    def _admit_waiting(self, budget: int) -> None:
        while self.waiting and budget > 0 and self.running < self.profile.max_num_seqs:
            sequence = self.waiting[0]
            if not self._enter(sequence):
                return
            self.waiting.popleft()
            self.prefilling.append(sequence)
            sequence.order = next(self._order)
            count = min(sequence.left_tokens, budget)
            if not self._grow(sequence, count):
                raise AssertionError("admission checked that the whole prompt fits")
            self._chunks.append((sequence, count))
            budget -= count

    def _enter(self, sequence: Sequence) -> bool:
        chain, size = sequence.request.chain, self.block_tokens
        hit = self.cache.longest_prefix(chain, (sequence.total_tokens - 1) // size)
        needed = -(-sequence.total_tokens // size) - hit
        if needed > self.cache.available_blocks - self.cache.unused(chain, hit):
            return False
        self.cache.pin(chain, hit)
        sequence.held_blocks = sequence.named_blocks = hit
        loaded = 0 if self.tier is None else self._load(sequence, hit, self.tier)
        sequence.computed_tokens = (hit + loaded) * size
        if sequence.cached_tokens is None:
            sequence.cached_tokens, sequence.loaded_tokens = (hit + loaded) * size, loaded * size
        return True

    def _load(self, sequence: Sequence, hit: int, tier: SharedTier) -> int:
        """Blocks taken from the shared tier behind the worker's own; the room for them was checked. None where
        computing them takes no longer."""
        chain, size = sequence.request.chain, self.block_tokens
        count = tier.longest_prefix(chain, hit, (sequence.total_tokens - 1) // size) - hit
        load_s = tier.load_s(count * size)
        if not count or load_s >= self.profile.prefill_s(count * size, context_tokens=hit * size):
            return 0
        self.cache.allocate(count)
        sequence.duplicates += self.cache.name(chain, hit, hit + count)
        sequence.held_blocks = sequence.named_blocks = hit + count
        self._loading_s += load_s
        return count

    def _grow(self, sequence: Sequence, count: int) -> bool:
        """Blocks for `count` more tokens; False and no change when there is no room."""
        reach = self._computed(sequence) + count
        missing = -(-reach // self.block_tokens) - sequence.held_blocks
        if missing > self.cache.available_blocks:
            return False
        if missing > 0:
            self.cache.allocate(missing)
            sequence.held_blocks += missing
        self._name_whole(sequence, reach)
        return True

    def _name_whole(self, sequence: Sequence, reach_tokens: int) -> None:
        chain = sequence.request.chain
        upto = min(reach_tokens // self.block_tokens, len(chain))
        if upto > sequence.named_blocks:
            sequence.duplicates += self.cache.name(chain, sequence.named_blocks, upto)
            sequence.named_blocks = upto

    def _preempt_last(self) -> Sequence:
        """The last come loses its KV and waits first in line; its answer so far is computed again."""
        victim = max(itertools.chain(self.prefilling, self.decoding), key=lambda each: each.order)
        if victim.joined_step is not None:
            self._leave(victim)
        else:
            self.prefilling.remove(victim)
            self._chunks = [chunk for chunk in self._chunks if chunk[0] is not victim]
            self._give_back(victim)
        victim.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(victim)
        return victim

    # how long it takes

    def _chunks_s(self) -> float:
        total_s = 0.0
        for sequence, count in self._chunks:
            total_s += self.profile.prefill_s(count, context_tokens=sequence.computed_tokens)
            self.prefilled_tokens += count
        return total_s

    def _run_s(self, steps: int) -> float:
        growth_s = len(self.decoding) * self.profile.decode_context_token_s
        return steps * self.decode_step_s() + growth_s * steps * (steps - 1) / 2

    def _steps_to_next_mark(self) -> int:
        while self._marks[0][2].joined_step != self._marks[0][3]:
            heapq.heappop(self._marks)
        return max(1, self._marks[0][0] - self._step)

    def _cut_run(self, now: float) -> None:
        """A request arrived in a run of decode steps: it ends with the step under way."""
        elapsed_s = max(0.0, now - self._began_s)
        half_growth_s = len(self.decoding) * self.profile.decode_context_token_s / 2
        linear_s = self.decode_step_s() - half_growth_s
        root = (math.sqrt(linear_s**2 + 4 * half_growth_s * elapsed_s) - linear_s) / (2 * half_growth_s)
        steps = min(max(1, math.ceil(root - 1e-9)), self._run_steps)
        self._run_steps = steps
        self._ends_s = max(now, self._began_s + self._run_s(steps))
