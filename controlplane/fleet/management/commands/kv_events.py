"""`manage.py kv_events`: the role that follows every worker's KV events. SIGTERM or SIGINT ends it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from controlplane.fleet.kv_events.subscriber import Subscriber


class Command(BaseCommand):
    help = "Follow the KV events of all workers: churn, occupancy, gaps."

    def handle(self, *args: Any, **options: Any) -> None:
        asyncio.run(_follow())


async def _follow() -> None:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    subscriber = Subscriber(redis_url=settings.REDIS_URL, networks=settings.CONFIG.worker_networks)
    with contextlib.suppress(asyncio.CancelledError):
        await subscriber.run()
