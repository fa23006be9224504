"""Isolation violations, how much of the traffic was checked, and what needs an operator's eye."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils import timezone

from controlplane.fleet.models import Finding
from controlplane.fleet.selectors import WorkerRow, open_findings, workers_table
from controlplane.isolation.models import IsolationViolation
from controlplane.isolation.services import FINDING_KIND
from controlplane.telemetry.figures import SourceFreshness
from controlplane.telemetry.rollup_rows import request_rows
from controlplane.telemetry.selectors import freshness
from controlplane.telemetry.windows import Scope, aligned_pair, cover


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


def violations(scope: Scope, *, limit: int = 100, include_acknowledged: bool = True) -> list[IsolationViolation]:
    """Newest first, within the scope's time and dimensions."""
    rows = IsolationViolation.objects.filter(at__gte=scope.from_, at__lt=scope.to)
    for name in ("tenant", "namespace", "pool", "worker", "model"):
        if getattr(scope, name):
            rows = rows.filter(**{name: getattr(scope, name)})
    if not include_acknowledged:
        rows = rows.filter(acknowledged_at=None)
    return list(rows[:limit])


def isolation_coverage(scope: Scope, *, now: datetime | None = None) -> Coverage:
    now = now or timezone.now()
    fields = ("isolation_checked", "isolation_unknown", "isolation_violations")
    span, _ = aligned_pair(scope, now=now)
    rows = request_rows(scope, cover(span, now=now), fields)
    if not rows:
        return Coverage(checked=None, unknown=None, violations=None)
    checked, unknown, found = (sum(values.get(name, 0) for _, values in rows) for name in fields)
    return Coverage(checked=checked, unknown=unknown, violations=found)


def needs_attention(*, now: datetime | None = None, limit: int = 50) -> list[Attention]:
    """Open findings and workers or sources whose figures are stale: critical first, then newest."""
    now = now or timezone.now()
    found = [_of_finding(finding) for finding in open_findings(limit=limit)]
    told = {item.target_id for item in found if item.kind == "poll_failed"}
    found += [
        _of_worker(row, now) for row in workers_table(now=now)
        if row.health in ("stale", "down") and row.worker_id not in told
    ]  # fmt: skip
    found += [_of_source(source, now) for source in freshness(now=now) if source.stale and source.last_at is not None]
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
    if finding.kind == FINDING_KIND:
        return "namespace"
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
