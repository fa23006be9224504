"""Follows one worker's cache from its numbered event batches. Pure: messages in, counts and replay requests out.

    live ──▶ seq as expected ──▶ applied
      │            gap ────────▶ Ask(last applied) ─▶ replay begins with the batch we know ─▶ continue
      │                                              └▶ it does not: another life ─▶ Ask(0)
      └────── seq backwards ───▶ (known batch again: ignored) or restart: wiped ─▶ Ask(0)
    Ask(0) ──▶ replay begins at 0 ─▶ exact      begins later, or no answer ─▶ degraded: resident unknown

A count is only given while it is exact: every batch since an empty cache was applied. The worker does not remove
duplicates from its events (stored ×3 gives removed ×3), hence the reference counts.

Who evicted whom is inferred: no event names a cause. A worker frees blocks when it allocates for a request, so in its
batch what was removed precedes what that request stores; whoever stores next in the batch is taken for the evictor.
Whose a block is follows from the salt of its chain's first block, which later events of the chain inherit.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from controlplane.fleet.kv_events.messages import Batch, BlockHash, Event, EventRefused, decode_batch, first_salt
from router.contract.histogram import Buckets, observe
from router.contract.telemetry import RESTORE_WINDOW_S, UNKNOWN_OWNER

HELD_MAX = 20_000
"""Live batches kept while a replay is awaited; beyond it the oldest go, which is a gap of its own."""
RESIDENT_MAX = 4_000_000
"""Blocks followed for one worker; a larger cache is reported as unknown."""
REMOVED_MAX = 200_000
"""Removed blocks remembered to recognise their return; the oldest are forgotten first."""
KNOWN_MAX = 1024
"""Fingerprints of applied batches, to tell a repeated batch from a restarted worker."""
GAP_S_MAX = 3600.0
"""A block that returns later is taken for a new one."""
ASKS_MAX = 3
"""Replays in a row that bring nothing before the tracker gives up."""
DEVICE_MEDIA = (None, "GPU")
"""Events of other media speak of offload tiers: they are not the worker's own cache."""

Message = tuple[int, bytes]
"""(sequence number, payload)."""
BlockKey = BlockHash | tuple[int, BlockHash]


@dataclass(frozen=True, slots=True)
class Ask:
    """Wanted: a replay that begins at `start`. `number` identifies the request; only the newest one counts."""

    number: int
    start: int


@dataclass(slots=True)
class Counts:
    """What happened since the last `take_counts`."""

    stored: int = 0
    removed: int = 0
    restored: int = 0
    cleared: int = 0
    gaps: int = 0
    lost_messages: int = 0
    refused_messages: int = 0
    unknown_events: int = 0
    evicted: dict[tuple[str, str], int] = field(default_factory=dict)
    """(who stored next, whose they were) → removed blocks."""
    restored_of: dict[str, int] = field(default_factory=dict)
    lifetime: Buckets = field(default_factory=dict)
    """Blocks by ms in the cache; those that were stored while the count was exact."""
    restore_gap: Buckets = field(default_factory=dict)
    """Blocks by ms from removal to return."""


@dataclass(frozen=True, slots=True)
class Stay:
    """How a block is in the cache; one object for all blocks of an event that are stored once."""

    references: int
    stored_at: float
    owner: str


def nobody(salt: str) -> str:
    return UNKNOWN_OWNER


class CacheTracker:
    def __init__(self, owner_of: Callable[[str], str] = nobody) -> None:
        """`owner_of`: the name that a salt belongs to."""
        self.exact = False
        """Whether `resident_blocks` is a fact."""
        self.epoch_at: float | None = None
        """Unix seconds at which the cache is known to have been empty; None while not exact."""
        self.pending: Ask | None = None
        self._next: int | None = None
        self._owner_of = owner_of
        self._references: dict[BlockKey, Stay] = {}
        self._victims: dict[str, int] = {}
        """Blocks removed in the present batch since something was stored, by owner."""
        self._removed_at: OrderedDict[BlockKey, float] = OrderedDict()
        self._held: deque[Message] = deque(maxlen=HELD_MAX)
        self._known: OrderedDict[int, bytes] = OrderedDict()
        self._counts = Counts()
        self._asks = 0
        self._fruitless_asks = 0

    @property
    def resident_blocks(self) -> int | None:
        return len(self._references) if self.exact and self.pending is None else None

    @property
    def state(self) -> str:
        """`live`, `rebuilding` or `degraded`; silence and lost connections are seen outside."""
        if self.pending is not None:
            return "rebuilding"
        return "live" if self.exact else "degraded"

    def take_counts(self) -> Counts:
        counts, self._counts = self._counts, Counts()
        return counts

    def begin(self) -> Ask:
        """Call once connected: the past is asked for, so that an idle worker's cache is known too."""
        return self._ask(0)

    def reconnected(self) -> Ask:
        """Call after a lost connection: batches may be missing, or the worker may be another process."""
        # What was held may belong to the life before; the replay brings it again if it does not.
        self._held.clear()
        return self._ask(0 if self._next is None else max(0, self._next - 1))

    def live(self, seq: int, payload: bytes) -> Ask | None:
        """A batch from the publisher. The answer, if any, is a replay that the caller must request."""
        if self.pending is not None:
            return self._hold(seq, payload)
        if self._next is None:
            return self._restart(seq, payload)
        if seq == self._next:
            self._apply(seq, payload)
            return None
        if seq < self._next:
            return None if self._known.get(seq) == fingerprint(payload) else self._restart(seq, payload, seen=True)
        self._counts.gaps += 1
        self._held.append((seq, payload))
        return self._ask(max(0, self._next - 1))

    def replayed(self, ask: Ask, messages: Iterable[Message], *, at: float) -> Ask | None:
        """The whole answer to `ask`, in order, complete at `at` (Unix seconds). May lead to a further request."""
        if self.pending != ask:
            return None
        batches = list(messages)
        self.pending = None
        if ask.start == 0 and not self._continues(batches):
            return self._rebuild(batches, at)
        if not self._continues(batches):
            return self._another_life(batches)
        for seq, payload in batches[1:]:
            if seq == self._next:
                self._apply(seq, payload)
        return self._drain()

    def unanswered(self, ask: Ask) -> None:
        """No replay can be had: what was missed stays unknown."""
        if self.pending != ask:
            return
        self.pending = None
        self._degrade()
        self._drain_degraded()

    # replay

    def _ask(self, start: int) -> Ask:
        self._asks += 1
        self.pending = Ask(self._asks, start)
        return self.pending

    def _hold(self, seq: int, payload: bytes) -> Ask | None:
        """A number that falls while waiting is a restart: what was held belongs to the life before."""
        if self._held and seq <= self._held[-1][0]:
            if (seq, payload) in self._held:
                return None
            return self._restart(seq, payload, seen=True)
        self._held.append((seq, payload))
        return None

    def _restart(self, seq: int, payload: bytes, *, seen: bool = False) -> Ask | None:
        """First word of a life. `seen`: another life was followed before, so the cache was emptied."""
        self._held.clear()
        self._wipe()
        if seen:
            self._counts.cleared += 1
        self._known.clear()
        if seq == 0:
            self.pending = None
            self._begin_empty(0, None)
            self._apply(seq, payload)
            return None
        self._next = None
        self._held.append((seq, payload))
        return self._ask(0)

    def _continues(self, batches: list[Message]) -> bool:
        """Whether the replay begins with the last batch applied: then it is the same life without a hole."""
        if not batches or self._next is None or self._next == 0:
            return False
        seq, payload = batches[0]
        return seq == self._next - 1 and self._known.get(seq) == fingerprint(payload)

    def _another_life(self, batches: list[Message]) -> Ask | None:
        """The batch we knew is gone or different: a restart, or a hole longer than the worker's buffer."""
        if batches and self._next is not None and batches[0][0] > self._next:
            self._counts.lost_messages += batches[0][0] - self._next
        else:
            self._counts.cleared += 1
        self._wipe()
        self._next = None
        self._known.clear()
        return self._ask(0)

    def _rebuild(self, batches: list[Message], at: float) -> Ask | None:
        """From the beginning of the worker's buffer. The past is not this second's churn: counts stay as they are."""
        before, had_next = self._counts, self._next
        self._counts = Counts()
        self._wipe()
        self._known.clear()
        if not batches:
            # Nothing was ever published in this life: the cache is empty, unless live batches say otherwise.
            self._begin_empty(0, at)
        elif batches[0][0] == 0:
            self._begin_empty(0, None)
        else:
            self._degrade()
            self._next = batches[0][0]
        for seq, payload in batches:
            if seq == self._next:
                self._apply(seq, payload)
        refused = self._counts.refused_messages
        self._counts = before
        self._counts.refused_messages += refused
        if had_next:
            self._counts.cleared += 1
        return self._drain()

    def _drain(self) -> Ask | None:
        """Apply what was held; a hole in it is asked for as long as asking brings something."""
        progress = False
        while self._held:
            seq, payload = self._held[0]
            if self._next is not None and seq > self._next:
                self._fruitless_asks = 0 if progress else self._fruitless_asks + 1
                if self._fruitless_asks >= ASKS_MAX:
                    self._fruitless_asks = 0
                    self._degrade()
                    self._drain_degraded()
                    return None
                return self._ask(max(0, self._next - 1))
            self._held.popleft()
            if seq == self._next:
                self._apply(seq, payload)
                progress = True
        self._fruitless_asks = 0
        return None

    def _drain_degraded(self) -> None:
        """Churn is still counted; numbers missing in between are lost."""
        while self._held:
            seq, payload = self._held.popleft()
            if self._next is not None and seq < self._next:
                continue
            if self._next is not None and seq > self._next:
                # A clear among the held batches may have made the count exact: this hole ends that.
                self._counts.lost_messages += seq - self._next
                self._degrade()
            self._next = seq
            self._apply(seq, payload)

    # content

    def _apply(self, seq: int, payload: bytes) -> None:
        self._next = seq + 1
        self._known[seq] = fingerprint(payload)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        try:
            batch = decode_batch(payload)
        except EventRefused:
            self._counts.refused_messages += 1
            self._counts.lost_messages += 1
            self._degrade()
            return
        if self.exact and self.epoch_at is None:
            self.epoch_at = batch.ts
        self._apply_batch(batch)

    def _apply_batch(self, batch: Batch) -> None:
        for event in batch.events:
            if event.type == "AllBlocksCleared":
                self._counts.cleared += 1
                self._begin_empty(self._next, batch.ts)
            elif event.medium not in DEVICE_MEDIA:
                continue
            elif event.type == "BlockStored":
                self._store(event, batch.ts)
            elif event.type == "BlockRemoved":
                self._remove(event, batch.ts)
            else:
                self._counts.unknown_events += 1
        # Room for a block that is not full yet is stored in a later batch: by whom is not known.
        self._charge(UNKNOWN_OWNER)

    def _store(self, event: Event, ts: float) -> None:
        counts, references = self._counts, self._references
        counts.stored += len(event.block_hashes)
        owner = self._owner(event)
        self._charge(owner)
        stay = Stay(1, ts, owner)
        for block in event.block_hashes:
            key = _key(block, event.group_idx)
            removed_at = self._removed_at.pop(key, None)
            if removed_at is not None:
                self._count_return(owner, ts - removed_at)
            if self.exact:
                known = references.get(key)
                references[key] = stay if known is None else replace(known, references=known.references + 1)
        if len(references) > RESIDENT_MAX:
            self._degrade()

    def _remove(self, event: Event, ts: float) -> None:
        self._counts.removed += len(event.block_hashes)
        for block in event.block_hashes:
            key = _key(block, event.group_idx)
            known = self._references.get(key)
            if known is not None and known.references > 1:
                self._references[key] = replace(known, references=known.references - 1)
                continue
            self._references.pop(key, None)
            owner = UNKNOWN_OWNER
            if known is not None:
                owner = known.owner
                observe(self._counts.lifetime, max(0.0, ts - known.stored_at) * 1000.0)
            self._victims[owner] = self._victims.get(owner, 0) + 1
            self._removed_at[key] = ts
            if len(self._removed_at) > REMOVED_MAX:
                self._removed_at.popitem(last=False)

    def _owner(self, event: Event) -> str:
        if event.parent_block_hash is not None:
            parent = self._references.get(_key(event.parent_block_hash, event.group_idx))
            return UNKNOWN_OWNER if parent is None else parent.owner
        salt = first_salt(event)
        return UNKNOWN_OWNER if salt is None else self._owner_of(salt)

    def _charge(self, evictor: str) -> None:
        """What was removed since the last store made room for this one."""
        for victim, blocks in self._victims.items():
            pair = (evictor, victim)
            self._counts.evicted[pair] = self._counts.evicted.get(pair, 0) + blocks
        if self._victims:
            self._victims = {}

    def _count_return(self, owner: str, gap_s: float) -> None:
        if gap_s <= RESTORE_WINDOW_S:
            self._counts.restored += 1
            self._counts.restored_of[owner] = self._counts.restored_of.get(owner, 0) + 1
        if gap_s <= GAP_S_MAX:
            observe(self._counts.restore_gap, max(0.0, gap_s) * 1000.0)

    def _begin_empty(self, next_seq: int | None, at: float | None) -> None:
        """The cache is known to be empty; `at` None: since before the next batch."""
        self._references.clear()
        self._next = next_seq
        self.exact = True
        self.epoch_at = at

    def _wipe(self) -> None:
        self._references.clear()
        self._removed_at.clear()
        self.exact = False
        self.epoch_at = None

    def _degrade(self) -> None:
        self._references.clear()
        self.exact = False
        self.epoch_at = None


def fingerprint(payload: bytes) -> bytes:
    """64 bits: enough to tell a repeated batch from another one with its number."""
    return hashlib.blake2b(payload, digest_size=8).digest()


def _key(block: BlockHash, group: int | None) -> BlockKey:
    """Groups of a hybrid model cache the same block apart; most models have group 0 only."""
    return (group, block) if group else block
