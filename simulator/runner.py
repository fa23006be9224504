"""Drives the engine in real time: waits out each step, publishes its events, reports metrics, delivers tokens."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from simulator.engine import Engine, Sequence, Step, TokenOut
from simulator.events import KvEvent
from simulator.faults import Faults
from simulator.metrics import WorkerMetrics

HANG_CHECK_S = 0.05
BUSY_WINDOW_S = 1.0
BUSY_STEPS_MAX = 4_096
"""More steps than that in a second would be steps under a quarter of a millisecond."""

Publish = Callable[[list[KvEvent]], None]


@dataclass(slots=True)
class TokenStream:
    """The tokens of one sequence on their way to its client. Bounded by the sequence's `max_tokens`.

    The sequences of one request share `ready`: it is set whenever one of them has tokens.
    """

    sequence: Sequence
    ready: asyncio.Event
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None

    def put(self, output: TokenOut) -> None:
        self.tokens.append(output.token)
        self.finish_reason = output.finish_reason
        self.ready.set()

    def due(self, interval_tokens: int) -> bool:
        """Time for a chunk: the first token, a full interval, or the end."""
        if not self.tokens:
            return False
        first = len(self.tokens) == self.sequence.output_tokens
        return first or len(self.tokens) >= interval_tokens or self.finish_reason is not None

    def take(self) -> list[int]:
        """The tokens that came since the last call; empty when there are none yet."""
        tokens, self.tokens = self.tokens, []
        return tokens


class EngineRunner:
    def __init__(
        self,
        engine: Engine,
        metrics: WorkerMetrics,
        faults: Callable[[], Faults],
        publish: Publish,
        *,
        time_scale: float,
    ) -> None:
        """`time_scale` 2.0 makes the modelled GPU twice as fast; all times reported are the wall's."""
        self._engine = engine
        self._metrics = metrics
        self._faults = faults
        self._publish = publish
        self._time_scale = time_scale
        self._streams: dict[str, TokenStream] = {}
        self._work_arrived = asyncio.Event()
        self._busy: deque[tuple[float, float]] = deque(maxlen=BUSY_STEPS_MAX)

    def submit(self, sequence: Sequence, ready: asyncio.Event) -> TokenStream:
        """Raises ValueError when the sequence can never fit."""
        self._engine.add(sequence)
        stream = TokenStream(sequence, ready)
        self._streams[sequence.id] = stream
        self._work_arrived.set()
        return stream

    def leave(self, stream: TokenStream) -> None:
        """The answer ended or its client left. Safe to call twice."""
        if self._streams.pop(stream.sequence.id, None) and stream.finish_reason is None:
            self._engine.abort(stream.sequence)
            self._work_arrived.set()

    def busy_share(self) -> float:
        """Share of the last second in which the engine computed, for the GPU's utilisation."""
        since = time.monotonic() - BUSY_WINDOW_S
        while self._busy and self._busy[0][1] < since:
            self._busy.popleft()
        return min(1.0, sum(end - max(start, since) for start, end in self._busy) / BUSY_WINDOW_S)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            while self._faults().hang:  # noqa: ASYNC110  the flag is plain data, and hanging may be slow to end
                await asyncio.sleep(HANG_CHECK_S)
            step = self._engine.begin_step(time.monotonic())
            if step is None:
                await self._work_arrived.wait()
                self._work_arrived.clear()
                continue
            await self._run_step(step)

    async def _run_step(self, step: Step) -> None:
        started = time.monotonic()
        for sequence in step.admitted:
            self._metrics.observe_admission(sequence)
        await asyncio.sleep(step.duration_s * self._faults().slow / self._time_scale)
        now = time.monotonic()
        self._busy.append((started, now))
        outputs = self._engine.finish_step(step, now)
        if step.events:
            self._publish(step.events)
        self._metrics.observe_step(step, self._engine.cache.take_times())
        for output in outputs:
            self._deliver(output)

    def _deliver(self, output: TokenOut) -> None:
        self._metrics.observe_token(output)
        stream = self._streams.get(output.sequence.id)
        if stream is not None:
            stream.put(output)
