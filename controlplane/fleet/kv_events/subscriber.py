"""All workers' links together: follows the table of workers, reports every second, ends cleanly."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

import zmq.asyncio
from asgiref.sync import sync_to_async
from django.db import DatabaseError, close_old_connections

from controlplane.fleet.kv_events.link import Endpoints, WorkerLink
from controlplane.fleet.kv_events.outlet import Outlet
from controlplane.fleet.kv_events.owners import Owners, SaltNames, read_salt_names
from controlplane.fleet.kv_events.reporter import Activity
from controlplane.fleet.models import Worker
from router.contract.snapshot import SnapshotError

log = logging.getLogger(__name__)

RELOAD_S = 5.0
NAMES_S = 30.0
"""Salts that are newer than their last reading belong to nobody until the next."""
REPORT_S = 1.0


class Subscriber:
    def __init__(self, *, redis_url: str, networks: Sequence[str]) -> None:
        self._networks = networks
        self._outlet = Outlet(redis_url)
        self._context = zmq.asyncio.Context()
        self._links: dict[Endpoints, tuple[WorkerLink, asyncio.Task[None]]] = {}
        self._owners: dict[str, Owners] = {}
        """By pool."""
        self._names: SaltNames = {}

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow_names())
                group.create_task(self._follow_workers())
                group.create_task(self._report_each_second())
        finally:
            await self._close()

    async def _follow_workers(self) -> None:
        while True:
            try:
                found = await sync_to_async(load_workers, thread_sensitive=False)()
            except DatabaseError:
                log.warning("workers cannot be read; following those known")
            else:
                await self._reconcile(found)
            await asyncio.sleep(RELOAD_S)

    async def _follow_names(self) -> None:
        while True:
            try:
                self._names = await sync_to_async(_read_names, thread_sensitive=False)()
            except (DatabaseError, SnapshotError):
                log.warning("the namespaces' salts cannot be read; using those known")
            for owners in self._owners.values():
                owners.names = self._names
            await asyncio.sleep(NAMES_S)

    def _owners_of(self, worker_id: str) -> Owners:
        pool = worker_id.partition("/")[0]
        if pool not in self._owners:
            self._owners[pool] = Owners(clock=time.monotonic)
            self._owners[pool].names = self._names
        return self._owners[pool]

    async def _reconcile(self, found: dict[Endpoints, Activity]) -> None:
        for endpoints in self._links.keys() - found.keys():
            _, task = self._links.pop(endpoints)
            await _end(task)
        for endpoints, activity in found.items():
            if endpoints not in self._links or self._links[endpoints][1].done():
                owners = self._owners_of(endpoints.worker_id)
                link = WorkerLink(self._context, endpoints, self._networks, owners)
                self._links[endpoints] = (link, asyncio.create_task(link.run()))
                log.info("following the KV events of %s", endpoints.worker_id)
            self._links[endpoints][0].reporter.note_activity(activity, at=time.time())

    async def _report_each_second(self) -> None:
        due = time.time() // 1 + 1
        while True:
            await asyncio.sleep(max(0.0, due - time.time()))
            await self._report(at=due - REPORT_S)
            # After a pause (a suspended host) the missed seconds are not made up.
            due = max(due + REPORT_S, time.time() // 1)

    async def _report(self, *, at: float) -> None:
        words = [
            link.reporter.report(link.tracker, at=at, connected=link.connected) for link, _ in self._links.values()
        ]
        # After the report, so that the moment of the question falls into no report.
        for link, _ in self._links.values():
            link.check_tail(now=time.monotonic())
        if words:
            await self._outlet.deliver([row for row, _ in words], {row.worker: live for row, live in words}, at=at)

    async def _close(self) -> None:
        for _, task in self._links.values():
            await _end(task)
        self._links.clear()
        self._context.destroy(linger=0)
        await self._outlet.close()


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _read_names() -> SaltNames:
    close_old_connections()
    return read_salt_names()


def load_workers() -> dict[Endpoints, Activity]:
    """Workers with an event endpoint, and what polls say of each. One query."""
    close_old_connections()
    workers = Worker.objects.select_related("pool", "status").exclude(kv_events_endpoint="")
    return {
        Endpoints(worker.worker_id, worker.kv_events_endpoint, worker.kv_replay_endpoint): _activity(worker)
        for worker in workers
    }


def _activity(worker: Worker) -> Activity:
    status = getattr(worker, "status", None)
    values = status.counters.get("values", {}) if status is not None else {}
    return Activity(computed_tokens=values.get("source:local_compute"), capacity_blocks=worker.facts.get("kv_blocks"))
