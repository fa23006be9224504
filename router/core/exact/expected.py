"""Blocks on their way: what a worker will hold once it has read the prompts that were sent to it (exact mode).

    reserved ──────────▶ read by the worker ──────▶ its KV events tell of the blocks, and the index has them
       │                 (first byte, or answer)    CONFIRMED_WITHIN_S later nothing is expected any more
       └─▶ failed, or the client left, before that: dropped at once

Workers tell of a block when it is computed, so of a burst of equal prompts each would be a miss wherever it goes, and
the burst would be spread. Yet a request that waits behind the first one hits when its turn comes: a worker enters
blocks into its cache as it schedules them. So the choice counts them as held by that worker, behind its queue, which
has the first one's prefill. They are not the worker's word: isolation and credit go by what it told (`Decision`).

An expectation is found by anchors: the prompt's own chained hash at each of ANCHORS' depths. Who shares a deeper anchor
shares all before it; how far two prompts agree beyond one is bisected. Nothing of a prompt shorter than the first
anchor is expected. Costs: `begin` and its end O(anchors), at most 22; `found` a look-up an anchor, and O(log n) for
each worker found; nothing while nothing is expected. Hashes begin with the salt, so a rotated one finds nothing of
before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from router.contract.ids import WorkerId
from router.core.hints import ANCHORS

EXPECTED_MAX: Final = 8192
"""Prompts at one time; about 3 KB each beside their hashes, which the requests under way hold as well. Of more the
oldest are forgotten: their blocks are then known when the worker tells of them."""
READ_WITHIN_S: Final = 120.0
"""A prompt that waits for longer is not waited for: its worker is stuck, or answers without a stream, and has told of
the blocks long ago."""
CONFIRMED_WITHIN_S: Final = 1.0
"""Events come some ten milliseconds after the step that they tell of, more where the router is busy."""
LOOKED_AT_MAX: Final = 64
"""Expectations looked at for one choice, those that agree longest first and the latest of them first."""


class Expectation:
    """The blocks of one prompt at one worker."""

    __slots__ = ("hashes", "over", "until", "worker")

    def __init__(self, worker: WorkerId, hashes: Sequence[int], until: float) -> None:
        self.worker: Final = worker
        self.hashes: Final = hashes
        self.until = until
        self.over = False


class Expected:
    def __init__(self) -> None:
        self._at: dict[int, dict[Expectation, None]] = {}
        """Hash at an anchor → who has it, the oldest first."""
        self._unread: dict[Expectation, None] = {}
        """Not read by the worker yet, as far as is known; the oldest first, as in `_read`."""
        self._read: dict[Expectation, None] = {}

    def __len__(self) -> int:
        return len(self._unread) + len(self._read)

    @property
    def anchors(self) -> int:
        """Distinct ones; none without an expectation."""
        return len(self._at)

    def begin(self, worker: WorkerId, hashes: Sequence[int], *, now: float) -> Expectation | None:
        """A prompt is on its way to the worker. None for one too short."""
        if len(hashes) < ANCHORS[0]:
            return None
        self._expire(now)
        if len(self) >= EXPECTED_MAX:
            self.drop(next(iter(self._read or self._unread)))
        expectation = Expectation(worker, hashes, now + READ_WITHIN_S)
        self._unread[expectation] = None
        for depth in ANCHORS[: bisect_right(ANCHORS, len(hashes))]:
            self._at.setdefault(hashes[depth - 1], {})[expectation] = None
        return expectation

    def read(self, expectation: Expectation, *, now: float) -> None:
        """The worker has read the prompt: its events are about to say so. Later calls change nothing."""
        if expectation in self._unread:
            del self._unread[expectation]
            expectation.until = now + CONFIRMED_WITHIN_S
            self._read[expectation] = None

    def drop(self, expectation: Expectation) -> None:
        """Nothing is expected of it any more; harmless for one that is over."""
        if expectation.over:
            return
        expectation.over = True
        self._unread.pop(expectation, None)
        self._read.pop(expectation, None)
        hashes = expectation.hashes
        for depth in ANCHORS[: bisect_right(ANCHORS, len(hashes))]:
            there = self._at.get(hashes[depth - 1])
            if there is None:
                continue  # a chain with one hash twice, which chance does not make
            there.pop(expectation, None)
            if not there:
                del self._at[hashes[depth - 1]]

    def forget_worker(self, worker: WorkerId) -> None:
        """Its cache is empty: prompts under way there are computed anew, or fail."""
        for expectation in [each for each in (*self._unread, *self._read) if each.worker == worker]:
            self.drop(expectation)

    def found(self, hashes: Sequence[int], *, now: float) -> dict[WorkerId, int]:
        """Leading blocks of a chain that are on their way, by worker."""
        self._expire(now)
        found: dict[WorkerId, int] = {}
        if not self._at:
            return found
        left = LOOKED_AT_MAX
        for place in range(bisect_right(ANCHORS, len(hashes)) - 1, -1, -1):
            depth = ANCHORS[place]
            there = self._at.get(hashes[depth - 1])
            if there is None:
                continue
            for expectation in reversed(there):
                if expectation.worker not in found:
                    found[expectation.worker] = _common_from(depth, expectation.hashes, hashes)
                left -= 1
                if not left:
                    return found
        return found

    def _expire(self, now: float) -> None:
        for line in (self._read, self._unread):
            while line:
                oldest = next(iter(line))
                if oldest.until > now:
                    break
                self.drop(oldest)


def _common_from(low: int, left: Sequence[int], right: Sequence[int]) -> int:
    """Blocks that two chains share, which agree in the first `low`: once parted they never meet again."""
    high = min(len(left), len(right))
    while low < high:
        middle = (low + high) // 2
        if left[middle] == right[middle]:
            low = middle + 1
        else:
            high = middle
    return low
