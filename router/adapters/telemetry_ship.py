"""One-second shipments to the telemetry stream. While Valkey is away they wait, bounded; then the backlog goes."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from typing import Final

import structlog

from router.adapters.recording import Recording
from router.adapters.telemetry_aggregate import SecondAggregate
from router.adapters.telemetry_totals import Totals
from router.adapters.valkey import Valkey
from router.call import Call
from router.contract.channels import TELEMETRY_STREAM, TELEMETRY_STREAM_MAXLEN
from router.contract.recorded import RecordedRequest
from router.contract.telemetry import DecisionSample, PrefixHeat, RouterState, Shipment, encode_shipment
from router.core.breakers import BreakerWatch

log = structlog.get_logger("router.telemetry")

BUFFER_SHIPMENTS_MAX: Final = 600
"""Ten minutes of seconds, at 1–5 KB each."""
SEND_BATCH_MAX: Final = 50
EXPLAINED_MAX: Final = 10_000
"""Samples kept for `/explain`, about 1 KB each."""
RECORDED_BACKLOG_MAX: Final = 60
"""With so many shipments waiting, recorded requests (up to 20 KB a second) are dropped and counted."""


class TelemetryShipper:
    """Implements `partners.Recorder`."""

    def __init__(
        self,
        *,
        router_id: str,
        boot: str,
        valkey: Valkey | None,
        clock: Callable[[], float],
        policy_version: Callable[[], int],
        state: Callable[[float, int], tuple[RouterState, list[PrefixHeat]]],
        breakers: BreakerWatch | None = None,
        recording: Recording | None = None,
    ) -> None:
        self._router_id = router_id
        self._boot = boot
        self._valkey = valkey
        self._clock = clock
        self._policy_version = policy_version
        self._state = state
        self._breakers = breakers
        self._recording = recording if recording is not None and recording.on else None
        self._recorded_dropped = 0
        """As of the last shipment."""
        self._second = SecondAggregate()
        self._buffer: deque[bytes] = deque()
        self._seq = 0
        self.dropped = 0
        self.totals = Totals()
        self.explained: dict[str, DecisionSample] = {}

    def record(self, call: Call) -> None:
        now = self._clock()
        self._second.add(call, at=now, policy_version=self._policy_version())
        if self._recording is not None:
            self._recording.look(call, at=now)
        if call.api is not None:
            if call.api.unknown:
                self.totals.unknown_fields += len(call.api.unknown)
            if self._breakers is not None and self._breakers.wants(call.api.text):
                self._look(self._breakers, call)
        if call.template_ignored:
            self.totals.templates_ignored += 1

    def _look(self, breakers: BreakerWatch, call: Call) -> None:
        grant, api = call.grant, call.api
        if grant is not None and api is not None and api.text is not None:
            breakers.look(
                api.text, namespace=grant.namespace, pool=grant.pool, model=grant.model, template=call.template
            )

    def record_refusal(self, kind: str) -> None:
        self._second.add_refusal(kind)

    async def run(self) -> None:
        """Forever: close the second, then send what waits. Sending never delays the next second."""
        sending: asyncio.Task[None] | None = None
        while True:
            started_at = self._clock()
            await asyncio.sleep(1.0 - started_at % 1.0)
            self.close_second(started_at)
            if sending is None or sending.done():
                sending = asyncio.create_task(self.send_backlog())

    def close_second(self, at: float) -> None:
        rows, violations, samples = self._second.take()
        breaks = self._breakers.take() if self._breakers is not None else []
        self.totals.add(rows)
        self._keep(samples)
        recorded = self._recorded()
        if self._valkey is None:
            return
        state, heat = self._state(self._clock(), self.dropped)
        shipment = Shipment(
            source=self._router_id,
            boot=self._boot,
            seq=self._seq,
            at=at,
            requests=rows,
            violations=violations,
            decisions=samples,
            heat=heat,
            router=state,
            breaks=breaks,
            recorded=recorded,
            recorded_dropped=self._newly_dropped(),
        )
        self._seq += 1
        if len(self._buffer) >= BUFFER_SHIPMENTS_MAX:
            self._buffer.popleft()
            self.dropped += 1
        self._buffer.append(encode_shipment(shipment))

    def _recorded(self) -> list[RecordedRequest]:
        """What was recorded in the second, unless the way to the control plane is blocked."""
        if self._recording is None:
            return []
        recorded = self._recording.take()
        if len(self._buffer) < RECORDED_BACKLOG_MAX:
            return recorded
        self._recording.lose(len(recorded))
        return []

    def _newly_dropped(self) -> int:
        if self._recording is None:
            return 0
        before, self._recorded_dropped = self._recorded_dropped, self._recording.dropped
        return self._recorded_dropped - before

    async def send_backlog(self) -> None:
        """Oldest first. A shipment leaves the buffer once Valkey has it; a repeat is recognised by its seq."""
        while self._buffer and self._valkey is not None:
            batch = [self._buffer[i] for i in range(min(SEND_BATCH_MAX, len(self._buffer)))]
            if not await self._valkey.add_to_stream(TELEMETRY_STREAM, batch, maxlen=TELEMETRY_STREAM_MAXLEN):
                return
            for sent in batch:
                if self._buffer and self._buffer[0] is sent:
                    self._buffer.popleft()

    def _keep(self, samples: list[DecisionSample]) -> None:
        for sample in samples:
            self.explained[sample.request_id] = sample
        while len(self.explained) > EXPLAINED_MAX:
            del self.explained[next(iter(self.explained))]


def new_boot() -> str:
    return secrets.token_hex(8)
