"""Consistent-hash ring with virtual nodes (S0.3): the home of prefixes that no worker holds.

Points depend on worker ids alone, which carry their pool (C63), so every router builds the same ring. Adding or
removing one of N workers moves about 1/N of the keys, and only to or from it. A worker without weight is stepped
over, so its keys go to their next worker on the ring and come back later.

Cost: build O(P log P) for P = workers × virtual nodes; lookup O(log P) plus the points stepped over.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Final

from router.contract.ids import WorkerId
from router.contract.secrets import framed

_MASK_64: Final = (1 << 64) - 1


class Ring:
    def __init__(self, workers: Iterable[WorkerId], *, virtual_nodes: int) -> None:
        if virtual_nodes < 1:
            raise ValueError(f"a ring needs at least one virtual node a worker, not {virtual_nodes}")
        points = sorted((point, worker) for worker in workers for point in _points(worker, virtual_nodes))
        self._positions = [position for position, _ in points]
        self._owners = [worker for _, worker in points]

    def home(self, key: int, takes: Callable[[WorkerId], bool] | None = None) -> WorkerId | None:
        """The first worker clockwise of `key` (any non-negative int) that `takes` it (default: all); None if none."""
        count = len(self._owners)
        start = bisect_right(self._positions, key & _MASK_64)
        refused: set[WorkerId] = set()
        for step in range(count):
            worker = self._owners[(start + step) % count]
            if worker in refused:
                continue
            if takes is None or takes(worker):
                return worker
            refused.add(worker)
        return None

    def homes(self, key: int, count: int, takes: Callable[[WorkerId], bool]) -> list[WorkerId]:
        """The first `count` workers clockwise of `key` that `takes` them: a longer answer begins with a shorter one."""
        found: dict[WorkerId, None] = {}
        points = len(self._owners)
        start = bisect_right(self._positions, key & _MASK_64)
        for step in range(points):
            if len(found) >= count:
                break
            worker = self._owners[(start + step) % points]
            if worker not in found and takes(worker):
                found[worker] = None
        return list(found)


def _points(worker: WorkerId, virtual_nodes: int) -> list[int]:
    """64-bit positions, 8 from each 64-byte BLAKE2b digest."""
    points: list[int] = []
    for group in range((virtual_nodes + 7) // 8):
        digest = hashlib.blake2b(framed("ring/v1", worker, str(group))).digest()
        points += [int.from_bytes(digest[at : at + 8]) for at in range(0, 64, 8)]
    return points[:virtual_nodes]
