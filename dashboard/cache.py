"""One rendering a second for each scope: fifty open dashboards cost about as much as one."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future

TTL_S = 1.0
ENTRIES_MAX = 256
"""Distinct scopes kept at a time: at about 60 KB each some 15 MB."""


class SingleFlight[Value]:
    """Values by key, at most `ttl_s` old; of simultaneous callers one computes and the others wait for it.

    Kept by the process: a second web process renders once more. Thread-safe.
    """

    def __init__(
        self, *, ttl_s: float = TTL_S, entries_max: int = ENTRIES_MAX, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ttl_s = ttl_s
        self._entries_max = entries_max
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, tuple[float, Future[Value]]] = OrderedDict()

    def get(self, key: Hashable, compute: Callable[[], Value], *, since: float = -math.inf) -> Value:
        """The value of `key`, whose computing began at `since` or later; raises what `compute` raises, and does not
        keep a failure."""
        with self._lock:
            started_at, future = self._entries.get(key, (0.0, None))
            fresh = future is not None and (not future.done() or self._clock() - started_at < self._ttl_s)
            if fresh and future is not None and started_at >= since:
                mine = False
            else:
                mine, future = True, Future()
                self._keep(key, future)
        if mine:
            self._fill(key, future, compute)
        return future.result()

    def peek(self, key: Hashable, *, since: float = -math.inf) -> Value | None:
        """The value of `key` when it is fresh, no older than `since`, and there already: never waits."""
        with self._lock:
            started_at, future = self._entries.get(key, (0.0, None))
        if future is None or not future.done() or started_at < since:
            return None
        if self._clock() - started_at >= self._ttl_s or future.exception():
            return None
        return future.result()

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()

    def _keep(self, key: Hashable, future: Future[Value]) -> None:
        self._entries[key] = (self._clock(), future)
        self._entries.move_to_end(key)
        while len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)

    def _fill(self, key: Hashable, future: Future[Value], compute: Callable[[], Value]) -> None:
        try:
            future.set_result(compute())
        except BaseException as error:
            with self._lock:
                if self._entries.get(key, (0.0, None))[1] is future:
                    del self._entries[key]
            future.set_exception(error)
