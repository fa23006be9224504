"""The workers of a pool from the shortest wait to the longest, kept as load changes.

So that a choice reads a few good workers instead of all of them. A worker is known by its place in the pool's list.
Equal waits go by heat, so that idle workers take turns. `put` is O(log W) comparisons and a move of 8 W bytes at most.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator


class WaitOrder:
    def __init__(self, size: int) -> None:
        self._keys: list[tuple[float, float, int]] = [(0.0, 0.0, place) for place in range(size)]
        """By place."""
        self._sorted = list(self._keys)

    def put(self, place: int, *, wait_ms: float, heat_ms: float) -> None:
        """The worker at `place` has this predicted wait and this much work given to it lately."""
        before, key = self._keys[place], (wait_ms, heat_ms, place)
        if key != before:
            del self._sorted[bisect_left(self._sorted, before)]
            insort(self._sorted, key)
            self._keys[place] = key

    def places(self) -> Iterator[int]:
        """Every place, the shortest wait first. The order must not change while this is read."""
        return (place for _, _, place in self._sorted)
