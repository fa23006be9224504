"""Isolation violations, how much of the traffic was checked, and what needs an operator's eye."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import QuerySet
from django.utils import timezone

from controlplane.fleet.models import Finding
from controlplane.fleet.selectors import WorkerRow, open_findings, workers_table
from controlplane.isolation.models import IsolationViolation
from controlplane.isolation.services import FINDING_OF
from controlplane.telemetry.breaks import BREAKER_KIND
from controlplane.telemetry.figures import SourceFreshness
from controlplane.telemetry.rollup_rows import RequestReading, read_requests
from controlplane.telemetry.selectors import freshness
from controlplane.telemetry.windows import Scope, Segment, aligned_pair, cover


@dataclass(frozen=True, slots=True)
class Coverage:
    """Answers of the scope by what the check could say. None = no traffic was reported."""

    checked: int | None
    unknown: int | None
    violations: int | None


@dataclass(frozen=True, slots=True)
class Attention:
    """One thing to look at. `target_kind`/`target_id` say where a link leads: `worker`, `pool`, `namespace`,
    `violation`, `router`, `source`."""

    severity: str
    """`critical`, `warning` or `info`."""
    kind: str
    sentence: str
    target_kind: str
    target_id: str
    since: datetime
    last_seen: datetime
    count: int


def violation_rows(scope: Scope) -> QuerySet[IsolationViolation]:
    """Newest first, within the scope's time and dimensions."""
    rows = IsolationViolation.objects.filter(at__gte=scope.from_, at__lt=scope.to)
    for name in ("tenant", "namespace", "pool", "worker", "model"):
        if getattr(scope, name):
            rows = rows.filter(**{name: getattr(scope, name)})
    return rows


def violations(scope: Scope, *, limit: int = 100, include_acknowledged: bool = True) -> list[IsolationViolation]:
    """The newest of `violation_rows`."""
    rows = violation_rows(scope)
    return list((rows if include_acknowledged else rows.filter(acknowledged_at=None))[:limit])


COVERAGE_FIELDS = ("isolation_checked", "isolation_unknown", "isolation_violations")


def isolation_coverage(scope: Scope, *, now: datetime | None = None, reading: RequestReading | None = None) -> Coverage:
    """`reading`: of `coverage_segments` at least, by whoever has it already."""
    now = now or timezone.now()
    segments = coverage_segments(scope, now=now)
    rows = (reading or read_requests(scope, segments, COVERAGE_FIELDS)).within(segments)
    if not rows:
        return Coverage(checked=None, unknown=None, violations=None)
    checked, unknown, found = (sum(values.get(name, 0) for _, values in rows) for name in COVERAGE_FIELDS)
    return Coverage(checked=checked, unknown=unknown, violations=found)


def coverage_segments(scope: Scope, *, now: datetime) -> list[Segment]:
    return cover(aligned_pair(scope, now=now)[0], now=now)


def needs_attention(
    *,
    now: datetime | None = None,
    limit: int = 50,
    workers: Sequence[WorkerRow] | None = None,
    sources: Sequence[SourceFreshness] | None = None,
    findings: Sequence[Finding] | None = None,
) -> list[Attention]:
    """Open findings and workers or sources whose figures are stale: critical first, then newest.

    `workers`, `sources`, `findings` (open ones, newest first): all of them at `now`, by whoever has them already.
    """
    now = now or timezone.now()
    workers = workers_table(now=now) if workers is None else workers
    sources = freshness(now=now) if sources is None else sources
    found = [_of_finding(finding) for finding in (open_findings(limit=limit) if findings is None else findings[:limit])]
    told = {item.target_id for item in found if item.kind == "poll_failed"}
    found += [
        _of_worker(row, now) for row in workers
        if row.health in ("stale", "down") and row.worker_id not in told
    ]  # fmt: skip
    found += [_of_source(source, now) for source in sources if source.stale and source.last_at is not None]
    ranks = {"critical": 0, "warning": 1, "info": 2}
    return sorted(found, key=lambda item: (ranks.get(item.severity, 3), -item.last_seen.timestamp()))[:limit]


def _of_finding(finding: Finding) -> Attention:
    return Attention(
        severity=finding.severity,
        kind=finding.kind,
        sentence=f"{finding.subject}: {finding.message}",
        target_kind=_target_kind(finding),
        target_id=finding.subject,
        since=finding.first_seen,
        last_seen=finding.last_seen,
        count=finding.count,
    )


def _target_kind(finding: Finding) -> str:
    if finding.kind in (*FINDING_OF.values(), BREAKER_KIND):
        return "namespace"
    if "@" in finding.subject:
        return "template"
    if "/" in finding.subject:
        return "worker"
    return "source" if finding.subject == "telemetry" else "pool"


def _of_worker(row: WorkerRow, now: datetime) -> Attention:
    last_seen = now if row.poll_age_s is None else now - timedelta(seconds=row.poll_age_s)
    age = "has never answered a poll" if row.poll_age_s is None else f"last answered a poll {row.poll_age_s:.0f} s ago"
    return Attention(
        severity="warning",
        kind="worker_stale",
        sentence=f"{row.worker_id} {age}; its figures are old.",
        target_kind="worker",
        target_id=row.worker_id,
        since=last_seen,
        last_seen=last_seen,
        count=1,
    )


def _of_source(source: SourceFreshness, now: datetime) -> Attention:
    names = {"router": f"Router {source.source}", "kv-events": "The KV-event subscriber", "polls": "Polling"}
    last_at = source.last_at or now
    return Attention(
        severity="warning",
        kind="source_stale",
        sentence=f"{names[source.kind]} has been silent for {source.age_s or 0:.0f} s.",
        target_kind="router" if source.kind == "router" else "source",
        target_id=source.source,
        since=last_at,
        last_seen=last_at,
        count=1,
    )
