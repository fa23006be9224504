"""`python -m benchmarks.poll_scale_rows fill N | polls | stale`: what the poll measurement asks of its database."""

from __future__ import annotations

import sys

import django

django.setup()

from datetime import timedelta  # noqa: E402  (apps must be loaded first)

from django.db.models import Sum  # noqa: E402
from django.utils import timezone  # noqa: E402

from benchmarks.poll_scale import FRESH_WITHIN_S, PORT  # noqa: E402
from controlplane.fleet.models import Worker, WorkerPool, WorkerStatus  # noqa: E402
from controlplane.telemetry.models import WorkerRollup  # noqa: E402


def fill(count: int) -> None:
    pool = WorkerPool.objects.create(slug="big")
    Worker.objects.bulk_create(
        Worker(pool=pool, slug=f"w{number}", url=f"http://127.1.{number // 250}.{number % 250 + 1}:{PORT}")
        for number in range(count)
    )


def polls() -> int:
    """Good polls that are in the rollups."""
    return WorkerRollup.objects.filter(width_s=10).aggregate(total=Sum("polls_ok"))["total"] or 0


def stale() -> int:
    fresh = WorkerStatus.objects.filter(ok_at__gt=timezone.now() - timedelta(seconds=FRESH_WITHIN_S)).count()
    return Worker.objects.count() - fresh


if __name__ == "__main__":
    action = sys.argv[1]
    print({"fill": lambda: fill(int(sys.argv[2])), "polls": polls, "stale": stale}[action]() or 0)
