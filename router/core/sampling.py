"""Which requests a recording keeps: whole sessions, as many as the budget allows.

A request's unit is told by its prompt: the first of a few depths (DEPTHS) at which its head is no longer one that many
share. All later requests of a conversation have the same unit, and conversations under one system prompt have different
ones. Kept are the units whose hash lies below a threshold; the threshold is the share of the traffic that is kept, and
halves or doubles as the budget demands, so that nearly all that was kept stays kept.

Which heads are shared is learnt: a depth behind which CHILDREN_MAX different ones were seen is a fork, and it and all
depths before it are heads. Looked at for that are LOOKS_MAX requests a second. All bounds are here; a look-up costs
O(log depths).
"""

from __future__ import annotations

import random
from typing import Final

DEPTHS: Final = tuple(
    [1, 2, 3, 4, 5, 6, 7]
    + [octave * fourth // 4 for octave in (8, 16, 32, 64, 128, 256, 512) for fourth in (4, 5, 6, 7)]
)
"""In blocks of the fingerprint: 512 bytes to 448 KB of text. A conversation parts from the others before that."""
CHILDREN_MAX: Final = 8
LOOKS_MAX: Final = 20
FOLLOWED_MAX: Final = 8_192
"""Places where a fork is looked for; some 300 bytes each. The longest unseen one goes first."""
HEADS_MAX: Final = 4_096
BURST_S: Final = 5.0
"""So many seconds' budget may be kept at once."""
SHARE_MIN: Final = 2.0**-20
ROOM: Final = 0.35
QUIET_S: Final = 30
"""The share doubles after so long below ROOM of the budget."""
SMOOTHING: Final = 0.2
ALL: Final = 1 << 64
_LOW_64: Final = ALL - 1


class Unit:
    """What a kept request is kept with."""

    __slots__ = ("depth", "head")

    def __init__(self, depth: int, head: int) -> None:
        self.depth: Final = depth
        """Its hash is the fingerprint's at so many blocks; 0 = it is alone."""
        self.head: Final = head
        """Blocks before it that many units share."""


class Sampling:
    def __init__(self, *, per_s: float) -> None:
        """Keeps about `per_s` requests a second."""
        self._per_s: Final = per_s
        self._threshold = ALL
        self.share = 1.0
        self.refused = 0
        """Requests of kept units beyond the budget, since the start."""
        self._tokens = per_s * BURST_S
        self._wanted = 0
        self._rate = 0.0
        self._quiet_s = 0
        self._looks = LOOKS_MAX
        self._skip = 0
        self._stride = 0
        self._seen = 0
        self._heads: dict[int, None] = {}
        self._places: dict[int, int] = {}
        """First block → place in DEPTHS of the deepest head that its prompts were last found to have."""
        self._children: dict[int, set[int]] = {}

    def keeps(self, hashes: list[int], rng: random.Random) -> Unit | None:
        """Of a request with these block hashes; dice decide where its text tells no unit."""
        self._seen += 1
        if self._seen > self._skip and self._looks and hashes:
            self._look(hashes)
        depth, head = self._unit(hashes)
        if depth:
            if hashes[depth - 1] & _LOW_64 >= self._threshold:
                return None
        elif rng.random() >= self.share:
            return None
        self._wanted += 1
        if self._tokens < 1:
            self.refused += 1
            return None
        self._tokens -= 1
        return Unit(depth, head)

    def second(self) -> None:
        """A second has gone by."""
        self._tokens = min(self._tokens + self._per_s, self._per_s * BURST_S)
        self._rate += SMOOTHING * (self._wanted - self._rate)
        # Looks are spread over the second, whatever its traffic.
        self._stride = self._skip = self._seen // LOOKS_MAX
        self._seen, self._looks, self._wanted = 0, LOOKS_MAX, 0
        self._quiet_s = self._quiet_s + 1 if self._rate < ROOM * self._per_s else 0
        if self._rate > self._per_s and self.share > SHARE_MIN:
            self._change(0.5)
        elif self.share < 1 and self._quiet_s >= QUIET_S:
            self._change(2.0)

    def _change(self, factor: float) -> None:
        self.share *= factor
        self._threshold = int(self.share * ALL)
        self._rate *= factor
        self._quiet_s = 0

    def _unit(self, hashes: list[int]) -> tuple[int, int]:
        """(depth of the unit, depth of the shared head before it)."""
        count = len(hashes)
        if not count:
            return 0, 0
        if hashes[0] not in self._heads:
            return 1, 0
        place = self._places.get(hashes[0], 0)
        if not self._ends_at(hashes, place):
            place = self._places[hashes[0]] = self._deepest(hashes)
            if len(self._places) > HEADS_MAX:
                del self._places[next(iter(self._places))]
        head = DEPTHS[place]
        if place + 1 < len(DEPTHS) and DEPTHS[place + 1] <= count:
            return DEPTHS[place + 1], head
        return (count, head) if count > head else (0, head)

    def _ends_at(self, hashes: list[int], place: int) -> bool:
        """Whether the prompt's head reaches to this place and no further."""
        count, heads = len(hashes), self._heads
        if DEPTHS[place] > count or hashes[DEPTHS[place] - 1] not in heads:
            return False
        after = DEPTHS[place + 1] if place + 1 < len(DEPTHS) else count + 1
        return after > count or hashes[after - 1] not in heads

    def _deepest(self, hashes: list[int]) -> int:
        """Heads are closed towards the front: the deepest one by bisection."""
        count, heads = len(hashes), self._heads
        low, high = 0, len(DEPTHS) - 1
        while low < high:
            middle = (low + high + 1) >> 1
            depth = DEPTHS[middle]
            if depth <= count and hashes[depth - 1] in heads:
                low = middle
            else:
                high = middle - 1
        return low

    def _look(self, hashes: list[int]) -> None:
        self._looks -= 1
        self._skip += self._stride
        followed, count = self._children, len(hashes)
        for place in range(len(DEPTHS) - 1):
            if DEPTHS[place + 1] > count:
                return
            parent, child = hashes[DEPTHS[place] - 1], hashes[DEPTHS[place + 1] - 1]
            children = followed.pop(parent, None)
            if children is None:
                children = set()
                if len(followed) >= FOLLOWED_MAX:
                    del followed[next(iter(followed))]
            followed[parent] = children
            if len(children) < CHILDREN_MAX:
                children.add(child)
            if len(children) >= CHILDREN_MAX:
                self._forks(hashes, place)

    def _forks(self, hashes: list[int], place: int) -> None:
        heads = self._heads
        for depth in DEPTHS[: place + 1]:
            heads.pop(hashes[depth - 1], None)
            heads[hashes[depth - 1]] = None
        while len(heads) > HEADS_MAX:
            del heads[next(iter(heads))]
