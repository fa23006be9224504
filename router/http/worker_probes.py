"""Active health: each worker's `/health` is asked again and again, so that a silent worker is left before it is tried.

    up ──FAILURES_IN_A_ROW probes in a row──▶ silent (none was answered in time) or down (refused, or a 5xx)
     ▲                                                                    └────one good answer────▶ up

A refused connection shows within two seconds, a stopped process (which still accepts) within eight: A5 asks for ten.
vLLM answers 200, and 503 once its engine is dead. What is no 5xx is an answer: a proxy without the path says 404.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

from router.contract.ids import WorkerId
from router.contract.snapshot import WorkerEntry
from router.core.fleet import Probe
from router.http.upstream import StaleConnection, UpstreamFailed, Upstreams, WorkerConnection

log = structlog.get_logger("router.probes")

FAILURES_IN_A_ROW = 3
ANSWER_S = 2.0
"""`/health` waits for nothing but the worker's event loop, which a long prompt may hold for a second."""
FAILED_PAUSE_S = 0.5
"""To the next probe after a failure: a worker that comes back gets requests again within this time."""
PROBES_A_SECOND_MAX = 200
"""Of all workers together, about 3 % of a core; more than that many workers are asked less often."""

Report = Callable[[WorkerId, Probe], bool]
"""Hears of a worker at every change, and while it is not up; says whether the worker gets nothing for it."""


class WorkerProbes:
    """Made inside a running event loop."""

    def __init__(self, upstreams: Upstreams, *, interval_s: float, report: Report) -> None:
        """`interval_s` 0: no probes."""
        self._upstreams = upstreams
        self._interval_s = interval_s
        self._report = report
        self._probes: dict[tuple[WorkerId, str], _Probe] = {}

    def follow(self, workers: Mapping[WorkerId, WorkerEntry]) -> None:
        """Probe exactly these, but those in maintenance. Level-triggered, on every snapshot."""
        if not self._interval_s:
            return
        wanted = {(worker, entry.url) for worker, entry in workers.items() if entry.state != "maintenance"}
        for gone in self._probes.keys() - wanted:
            self._probes.pop(gone).task.cancel()
        interval_s = max(self._interval_s, len(wanted) / PROBES_A_SECOND_MAX)
        for worker, url in wanted:
            probe = self._probes.get((worker, url))
            if probe is None:
                probe = self._probes[worker, url] = _Probe(worker, url, self._upstreams, self._report)
            probe.interval_s = interval_s

    async def close(self) -> None:
        tasks = [probe.task for probe in self._probes.values()]
        self._probes.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Probe:
    """One worker's probes: an `Exchange` for its own connections."""

    interval_s: float = 1.0

    def __init__(self, worker: WorkerId, url: str, upstreams: Upstreams, report: Report) -> None:
        self._worker = worker
        self._url = url
        self._upstreams = upstreams
        self._report = report
        self._failures = 0
        self._shown: Probe = "up"
        self._left = False
        self._answer: asyncio.Future[UpstreamFailed | None] | None = None
        self._connection: WorkerConnection | None = None
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            failure = await self._ask()
            self._note(failure)
            await asyncio.sleep(self.interval_s if failure is None else FAILED_PAUSE_S)

    async def _ask(self) -> UpstreamFailed | None:
        """What is wrong with the worker, None for nothing."""
        self._answer = asyncio.get_running_loop().create_future()
        try:
            pool = self._upstreams.pool(self._url)
            self._connection = connection = await pool.connect(timeout_s=ANSWER_S)
            head = b"GET /health HTTP/1.1\r\nhost: %b\r\nconnection: close\r\n\r\n" % pool.host_header
            connection.ask(self, (head,), head_timeout_s=ANSWER_S, body_timeout_s=ANSWER_S)
            return await self._answer
        except UpstreamFailed as error:
            return error
        finally:
            if self._connection is not None:
                self._connection.release(reusable=False)
                self._connection = None

    def _note(self, failure: UpstreamFailed | None) -> None:
        self._failures = 0 if failure is None else self._failures + 1
        shown: Probe = "up"
        if failure is not None and self._failures >= FAILURES_IN_A_ROW:
            shown = "silent" if failure.kind == "upstream_timeout" else "down"
        if shown != self._shown:
            log.warning(f"worker_{shown}", worker=self._worker, why="" if failure is None else failure.reason)
        if shown != "up" or self._shown != "up":
            left = self._report(self._worker, shown)
            if left and not self._left:
                self._upstreams.give_up_waiting(self._url)
            self._left = left
        self._shown = shown

    # Exchange

    def answer_begun(self) -> None:
        head = self._connection.head if self._connection is not None else None
        status = head.status if head is not None else 0
        well = 0 < status < 500
        self._settle(None if well else UpstreamFailed("upstream_error", f"it answered with status {status}"))

    def answer_complete(self) -> None:
        """Never called: the body is not relayed."""

    def answer_failed(self, error: UpstreamFailed | StaleConnection) -> None:
        failed = error if isinstance(error, UpstreamFailed) else None
        self._settle(failed or UpstreamFailed("upstream_error", "it closed the connection"))

    def _settle(self, failure: UpstreamFailed | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(failure)
