"""Follows the numbered event batches of one holder and keeps its part of the block index. Pure: no sockets, no clocks.

    connected ─▶ Ask(last batch applied, or 0)
      replay begins with the batch we know ──────▶ same life: the missing range is applied (C7)
      it does not ─▶ Ask(0) ─▶ begins at 0 ──────▶ rebuilt from an empty cache
                              begins later ──────▶ degraded: batches before it are gone (A12)
    live batch   number as expected ─▶ applied     gap, or a first number above 0 (C9) ─▶ Ask, held until answered
                 number falls ─▶ known batch again: ignored (C13), else a restart: wiped (C1) ─▶ begins at 0 or Ask(0)
    any batch that is not understood, foreign block size, hybrid cache, no room ─▶ degraded
    degraded ─▶ AllBlocksCleared (C5), restart, or a whole replay, tried again and again ─▶ exact

`exact` is claimed only for an index part to which every batch since an empty cache was applied. Without it the part is
wiped or has no lease, and callers fall back to approximate matches: partial data is never used.

The caller feeds `receive` and `replay_*`, calls `step` until it returns False, serves `ask`, and calls `tick` every
second. Input is queued and a step is short, so the caller decides how long the loop is held. What batches do to the
index is in `holder_content.py`; here are numbers, lives and replays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import xxhash

from router.core.exact.block_index import BlockIndex, Holder, Resident
from router.core.exact.credit import Credit
from router.core.exact.event_batches import first_salts
from router.core.exact.holder_content import Counts, HolderContent
from router.core.exact.silence import Silence

LEASE_S = 5.0
"""Granted by each `tick`: four missed ones end it (S3.1)."""
INBOX_MESSAGES_MAX = 10_000
"""Live batches that wait for a replay or for their turn, as many as a worker keeps for replays by default."""
INBOX_BYTES_MAX = 32 * 1024 * 1024
REPLAYED_MESSAGES_MAX = 64
"""Replayed batches taken from the socket ahead of their turn."""
KNOWN_MAX = 256
"""Fingerprints of applied batches, to tell a repeated batch from a restarted worker."""
ASKS_MAX = 3
"""Replays in a row that bring nothing before a gap counts as lost."""
PROBE_S = 1.0
"""After this long without a batch, the replay is asked once whether the last one was lost: no later number tells."""
RETRY_S, RETRY_S_MAX = 30.0, 600.0
"""A degraded stream asks for a whole replay again after this long, doubled each time it did not help."""
_SHORT_OF = xxhash.xxh3_64_intdigest

Message = tuple[int, bytes]
"""(sequence number, payload)."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Wanted: a replay that begins at `start`. `number` identifies the request; only the newest one counts."""

    number: int
    start: int


@dataclass(frozen=True, slots=True)
class StreamReport:
    """For metrics and the admin port."""

    holder: Holder
    state: str
    reason: str
    exact: bool
    resident: Resident
    block_size_tokens: int | None
    credit: float
    counts: Counts


class EventStream:
    def __init__(
        self,
        index: BlockIndex,
        holder: Holder,
        *,
        block_size_tokens: int | None = None,
        capacity_blocks: int | None = None,
        replayable: bool = True,
    ) -> None:
        """`block_size_tokens`: as the worker's configuration says, None = learnt from the first event.
        `capacity_blocks`: of the device, None = not checked. `replayable`: whether asking is of any use."""
        index.add(holder)
        self.holder = holder
        self.capacity_blocks = capacity_blocks
        self.ask: Ask | None = None
        """The replay that is wanted; a change of its number replaces the one under way."""
        self.counts = Counts()
        self.connected = False
        self._index = index
        self._replayable = replayable
        self._content = HolderContent(index, holder, self.counts, block_size_tokens=block_size_tokens)
        self._caught_up = False
        self._next: int | None = None
        self._known: dict[int, int] = {}
        self._inbox: deque[Message] = deque()
        self._inbox_bytes = 0
        self._replayed: deque[Message | None] = deque()
        self._replay_begun = False
        self._replay_progress = False
        self._probing = False
        self._probe_at: float | None = None
        self._asks = 0
        self._asks_in_vain = 0
        self._revoked = False
        self._revoked_at: int | None = None
        self._retry_at: float | None = None
        self._retry_s = RETRY_S
        self._credit = Credit(slack_tokens=block_size_tokens or 16)
        self._credit_off = False
        self._silence = Silence()
        self._silent = False
        self._on_salt: Callable[[str], None] | None = None

    # state

    @property
    def exact(self) -> bool:
        """Whether the index holds the holder's whole cache, as of the last batch that arrived."""
        return (
            self._content.complete
            and self._caught_up
            and (self.ask is None or self._probing)
            and self.connected
            and not (self._revoked or self._silent or self._credit_off)
        )

    @property
    def state(self) -> str:
        """`live`, `rebuilding`, `degraded`, `silent` or `down`."""
        if not self.connected:
            return "down"
        if (self.ask is not None and not self._probing) or (self._content.complete and not self._caught_up):
            return "rebuilding"
        if self._silent:
            return "silent"
        return "live" if self.exact else "degraded"

    @property
    def reason(self) -> str:
        """Why it is not live: `revoked`, `credit`, `truncated`, `lost`, `no_replay`, `refused_event`,
        `unknown_event`, `block_size`, `hybrid_cache`, `index_full`, `over_capacity`, `unknown`, or ""."""
        if self._revoked:
            return "revoked"
        if self._credit_off:
            return "credit"
        return "" if self._content.complete else self._content.reason

    @property
    def wants_live(self) -> bool:
        """False: leave live batches in the socket; what is lost there is a gap."""
        return len(self._inbox) < INBOX_MESSAGES_MAX and self._inbox_bytes < INBOX_BYTES_MAX

    @property
    def wants_replayed(self) -> bool:
        return len(self._replayed) < REPLAYED_MESSAGES_MAX

    def report(self) -> StreamReport:
        return StreamReport(
            holder=self.holder,
            state=self.state,
            reason=self.reason,
            exact=self.exact,
            resident=self._index.resident_of(self.holder),
            block_size_tokens=self._content.block_size_tokens,
            credit=self._credit.score,
            counts=replace(self.counts),
        )

    # input

    def connect(self) -> None:
        """The subscription stands, for the first time or again: what was missed, and whose life it is, is asked for."""
        self.connected = True
        self._asks_in_vain = 0
        self._clear_inbox()
        if not self._replayable:
            self._forget("no_replay")
        self._want(self._last_applied())

    def disconnect(self) -> None:
        self.connected = False
        self._index.suspend(self.holder)

    def receive(self, seq: int, payload: bytes, *, now: float) -> None:
        """A live batch."""
        self._silence.heard(now=now)
        self._silent = False
        self._probe_at = now + PROBE_S
        if self.ask is not None and self._inbox and seq <= self._inbox[-1][0]:
            if (seq, payload) == self._inbox[-1]:
                self.counts.duplicates += 1
                return
            # A restart while a replay is awaited: what was held, and maybe the replay, is of the life before.
            self._clear_inbox()
            self._want(self._last_applied())
        if self.wants_live:
            self._inbox.append((seq, payload))
            self._inbox_bytes += len(payload)

    def replay_receive(self, ask: Ask, seq: int, payload: bytes) -> None:
        """A batch of the answer to `ask`, in order."""
        if ask == self.ask:
            self._replayed.append((seq, payload))

    def replay_end(self, ask: Ask) -> None:
        """The answer to `ask` is complete."""
        if ask == self.ask:
            self._replayed.append(None)

    def replay_fail(self, ask: Ask) -> None:
        """There is no answer, or no end of it: what was missed stays unknown."""
        if ask == self.ask and self._probing:
            self._close_ask()
        elif ask == self.ask:
            self._asks_in_vain += 1
            self._close_ask()
            self._content.degrade("no_replay")

    def revoke(self) -> None:
        """Nothing that the cache holds may be hit any more (S3.8): unusable until the worker restarts or clears it."""
        self._revoked = True
        self._revoked_at = self._inbox[-1][0] + 1 if self._inbox else self._next
        self._content.degrade("revoked")

    def watch_salts(self, seen: Callable[[str], None] | None) -> None:
        """Hand the salts of later batches to `seen`, as evidence of isolation; None ends it. They are not kept."""
        self._on_salt = seen

    def note_answer(self, *, computed_tokens: int, sent_at: float, now: float) -> None:
        """The worker answered a request sent at `sent_at`, of whose prompt it computed `computed_tokens` itself."""
        self._silence.note_answer(computed_tokens=computed_tokens, sent_at=sent_at, now=now)

    def judge(self, *, predicted_tokens: int, delivered_tokens: int, now: float) -> None:
        """Cached tokens of an answer, predicted from this index and as the worker says. May switch its events off."""
        self._credit.slack_tokens = self._content.block_size_tokens or self._credit.slack_tokens
        if self._credit.judge(predicted_tokens=predicted_tokens, delivered_tokens=delivered_tokens, now=now):
            self._credit_off = True
            self._content.degrade("credit")

    def tick(self, *, now: float) -> None:
        """Once a second: renews or ends the lease, notices silence, tries again."""
        self._content.check_size(self.capacity_blocks)
        self._silent = self._silence.lasts(now=now)
        if self._credit_off and not self._credit.is_off(now=now):
            self._credit_off = False
            self._retry_at = now
        if self.exact:
            self._retry_s, self._retry_at = RETRY_S, None
            self._index.renew(self.holder, until=now + LEASE_S)
            self._probe(now)
            return
        self._index.suspend(self.holder)
        if not self._content.complete and self.ask is None and self.connected and self._replayable:
            self._retry(now)

    def close(self) -> None:
        """The worker is gone."""
        self._index.discard(self.holder)

    # work

    def step(self) -> bool:
        """Do one short piece of work. False when there is none until more input comes."""
        if self._content.busy:
            if self._content.take_portion():
                self._note_clear()
        elif self._replayed:
            self._take_replayed(self._replayed.popleft())
        elif self._inbox and self.ask is None:
            seq, payload = self._inbox.popleft()
            self._inbox_bytes -= len(payload)
            self._take(seq, payload)
        else:
            self._caught_up = self.ask is None or self._probing
            return False
        return True

    def _take(self, seq: int, payload: bytes) -> None:
        """A live batch in its turn; no replay is awaited."""
        if self._revoked and self._revoked_at is None:
            self._revoked_at = seq + 1
        if seq == self._next:
            self._accept(seq, payload)
        elif self._next is None:
            self._take_first(seq, payload)
        elif seq < self._next:
            self._take_fallen(seq, payload)
        elif not (self._content.complete and self._may_ask):
            self._jump(seq, payload)
        else:
            self.counts.gaps += 1
            self._hold_first(seq, payload)
            self._want(self._last_applied())

    @property
    def _may_ask(self) -> bool:
        return self._replayable and self._asks_in_vain < ASKS_MAX

    def _take_first(self, seq: int, payload: bytes) -> None:
        if seq == 0:
            self._begin()
            self._accept(seq, payload)
        elif self._may_ask:
            self._hold_first(seq, payload)
            self._want(0)
        else:
            self._jump(seq, payload)

    def _take_fallen(self, seq: int, payload: bytes) -> None:
        if self._known.get(seq) == _SHORT_OF(payload):
            self.counts.duplicates += 1
            return
        self._restart()
        self._take_first(seq, payload)

    def _jump(self, seq: int, payload: bytes) -> None:
        """Go on after batches that are lost for good."""
        self._asks_in_vain = 0
        if self._next is not None:
            self.counts.lost_messages += seq - self._next
        if self._content.complete or self._next is None:
            self._content.degrade("lost")
        self._accept(seq, payload)

    # replay

    def _want(self, start: int) -> None:
        if self._replayable:
            self._open_ask(start)
            self._probing = self._caught_up = False
            self._index.suspend(self.holder)
            self._drop_past_lives()

    def _probe(self, now: float) -> None:
        """The index is used on: it is as good as before, and only a lost last batch makes it better."""
        if self._probe_at is not None and now >= self._probe_at and self.ask is None and self._replayable:
            self._probe_at = None
            self._open_ask(self._last_applied())
            self._probing = True

    def _open_ask(self, start: int) -> None:
        self._asks += 1
        self.ask = Ask(self._asks, start)
        self.counts.replays += 1
        self._replayed.clear()
        self._replay_begun = self._replay_progress = False

    def _take_replayed(self, message: Message | None) -> None:
        if message is None:
            self._end_replay()
            return
        seq, payload = message
        if not self._replay_begun:
            self._replay_begun = True
            if self._content.complete and self._is_last_applied(seq, payload):
                return
            if self._differs_from_known(seq, payload):
                self._restart()
            if self._wanted_start() > 0:
                self._want(0)
                return
            self._rebuild(seq)
        if self._next is None or seq >= self._next:
            self._replay_progress = True
            if seq != self._next:
                self._content.degrade("lost")
            self._accept(seq, payload)

    def _end_replay(self) -> None:
        start, begun = self._wanted_start(), self._replay_begun
        if not begun and start > 0:
            # The worker never published the batch we know: it is another one.
            self._restart()
            self._want(0)
            return
        if not begun:
            self._begin()
        if self._revoked and self._next is not None:
            # A worker that has published fewer batches than it had at the revocation is another process.
            self._revoked = self._revoked_at is None or self._next >= self._revoked_at
            self._revoked_at = self._next if self._revoked_at is None else self._revoked_at
        self._close_ask()
        self._asks_in_vain = self._asks_in_vain + 1 if self._inbox and not self._replay_progress else 0

    def _rebuild(self, first: int) -> None:
        """A replay from 0 begins with batch `first`; a worker does not say when it forgot earlier ones (A12)."""
        if first == 0:
            self._begin()
        else:
            self._forget("truncated")
            self._next = first

    def _close_ask(self) -> None:
        self.ask, self._probing = None, False
        self._replayed.clear()
        # Held batches below it came with the replay, or are lost; a known number with other content is a restart.
        while self._inbox and self._next is not None and self._inbox[0][0] < self._next:
            if self._differs_from_known(*self._inbox[0]):
                return
            _, payload = self._inbox.popleft()
            self._inbox_bytes -= len(payload)

    def _wanted_start(self) -> int:
        return self.ask.start if self.ask is not None else 0

    def _last_applied(self) -> int:
        return self._next - 1 if self._next else 0

    def _is_last_applied(self, seq: int, payload: bytes) -> bool:
        return self._next is not None and seq == self._next - 1 and self._known.get(seq) == _SHORT_OF(payload)

    def _differs_from_known(self, seq: int, payload: bytes) -> bool:
        return seq in self._known and self._known[seq] != _SHORT_OF(payload)

    def _hold_first(self, seq: int, payload: bytes) -> None:
        self._inbox.appendleft((seq, payload))
        self._inbox_bytes += len(payload)

    def _drop_past_lives(self) -> None:
        """Of held batches only those after the last fall of the number can belong to the life that is replayed."""
        held = list(self._inbox)
        falls = [at for at in range(1, len(held)) if held[at][0] <= held[at - 1][0]]
        if falls:
            self._clear_inbox()
            for seq, payload in held[falls[-1] :]:
                self._inbox.append((seq, payload))
                self._inbox_bytes += len(payload)

    def _clear_inbox(self) -> None:
        self._inbox.clear()
        self._inbox_bytes = 0

    def _retry(self, now: float) -> None:
        if self._revoked or self._credit_off:
            return
        if self._retry_at is None:
            self._retry_at = now + self._retry_s
        elif now >= self._retry_at:
            self._retry_at = None
            self._retry_s = min(RETRY_S_MAX, self._retry_s * 2)
            self._want(0)

    # content

    def _accept(self, seq: int, payload: bytes) -> None:
        """The next batch of the life that is followed."""
        self._next = seq + 1
        self._known[seq] = _SHORT_OF(payload)
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]
        if self._on_salt is not None:
            for salt in first_salts(payload):
                self._on_salt(salt)
        if self._content.take(payload):
            self._note_clear()

    def _note_clear(self) -> None:
        """A cache that was cleared after the revocation holds nothing of what was revoked."""
        if self._revoked and self._revoked_at is not None and self._next is not None:
            self._revoked = self._next <= self._revoked_at

    def _begin(self) -> None:
        """The cache is known to have been empty before batch 0."""
        self._known.clear()
        self._next = 0
        self._content.begin()

    def _restart(self) -> None:
        """The worker is another process: its cache began empty, and holds nothing of what was revoked."""
        self.counts.restarts += 1
        self._revoked = False
        self._forget("lost")

    def _forget(self, reason: str) -> None:
        self._content.degrade(reason)
        self._next = None
        self._known.clear()
