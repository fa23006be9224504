"""Which workers are due a canary, and the matrix worker × endpoint of what the last ones said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db.models import Max

from controlplane.fleet.models import Worker
from controlplane.isolation.canary import ENDPOINTS, INCONCLUSIVE, RED
from controlplane.isolation.canary_run import TELLS_NO_USAGE
from controlplane.isolation.models import CanaryResult, TtftAudit

EVERY = timedelta(hours=1)
AGAIN_AFTER = {RED: timedelta(minutes=5), INCONCLUSIVE: timedelta(minutes=15)}
"""Sooner than hourly: a leak until it is cured, and what could not be told."""
OLD_AFTER = timedelta(hours=2)
"""Two rounds missed: what the matrix shows is no longer of this moment."""
DUE_MAX = 50
"""Workers of one tick; the next follows a minute later."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One endpoint of one worker. `result` None = never asked."""

    endpoint: str
    result: CanaryResult | None
    is_old: bool = False
    age_s: float | None = None
    """Of the last answer; None = never asked."""

    @property
    def gravity(self) -> int:
        """0 = look at it first: a leak, then what is unknown or old, then what is well."""
        if self.result is None or self.is_old:
            return 1
        verdict = self.result.verdict
        unsure = verdict == INCONCLUSIVE and self.endpoint not in TELLS_NO_USAGE
        return 0 if verdict == RED else 1 if unsure else 2


@dataclass(frozen=True, slots=True)
class Row:
    worker_id: str
    cells: list[Cell]
    checked_at: datetime | None


def workers_due(*, now: datetime) -> list[int]:
    """Primary keys of ready workers: never asked, restarted since, or asked too long ago. Those longest due first."""
    workers = Worker.objects.filter(state=Worker.State.READY, pool__models__isnull=False).distinct()
    found = []
    for worker in workers.select_related("status").annotate(asked_at=Max("canaries__checked_at")):
        due_at = _due_at(worker, worker.asked_at)
        if due_at is None or due_at <= now:
            found.append((due_at or datetime.min.replace(tzinfo=UTC), worker.pk))
    soon = _asked_again(now)
    found += [(now, pk) for pk in soon if pk not in {pk for _, pk in found}]
    return [pk for _, pk in sorted(found)[:DUE_MAX]]


def _due_at(worker: Worker, asked_at: datetime | None) -> datetime | None:
    """None = at once."""
    if asked_at is None:
        return None
    started = getattr(worker, "status", None) and worker.status.counters.get("started_at")
    if isinstance(started, int | float) and datetime.fromtimestamp(started, UTC) > asked_at:
        return asked_at
    return asked_at + EVERY


def _asked_again(now: datetime) -> set[int]:
    """Workers whose last word was red or inconclusive, and long enough ago."""
    pks: set[int] = set()
    for verdict, after in AGAIN_AFTER.items():
        rows = CanaryResult.objects.filter(
            newest=True, verdict=verdict, checked_at__lte=now - after, worker__state=Worker.State.READY
        )
        if verdict == INCONCLUSIVE:
            rows = rows.exclude(endpoint__in=TELLS_NO_USAGE)
        pks |= set(rows.values_list("worker_id", flat=True))
    return pks


def newest_results() -> list[CanaryResult]:
    """The last result of each worker and endpoint. One query."""
    return list(CanaryResult.objects.filter(newest=True).select_related("worker__pool"))


def recent_audits(*, limit: int) -> list[TtftAudit]:
    """Newest first. One query."""
    return list(TtftAudit.objects.select_related("worker__pool")[:limit])


def canary_matrix(*, now: datetime, pool: str = "", worker: str = "") -> list[Row]:
    """A row for each worker that serves, asked or not. Two queries."""
    workers = Worker.objects.select_related("pool").exclude(state=Worker.State.MAINTENANCE)
    if pool:
        workers = workers.filter(pool__slug=pool)
    if worker:
        workers = workers.filter(pool__slug=worker.partition("/")[0], slug=worker.partition("/")[2])
    known = {(result.worker_id, result.endpoint): result for result in newest_results()}
    return [_row(each, known, now) for each in workers]


def _row(worker: Worker, known: dict[tuple[int, str], CanaryResult], now: datetime) -> Row:
    results = [known.get((worker.pk, endpoint)) for endpoint in ENDPOINTS]
    cells = [
        Cell(
            endpoint,
            result,
            is_old=result is not None and result.checked_at < now - OLD_AFTER,
            age_s=None if result is None else max(0.0, (now - result.checked_at).total_seconds()),
        )
        for endpoint, result in zip(ENDPOINTS, results, strict=True)
    ]
    asked: Sequence[datetime] = [result.checked_at for result in results if result is not None]
    return Row(worker.worker_id, cells, max(asked, default=None))
