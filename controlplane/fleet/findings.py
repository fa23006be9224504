"""Opening, repeating and resolving findings, in few queries for many subjects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import F

from controlplane.fleet.models import Finding

EVENT_KINDS = frozenset(
    {
        "counter_reset",
        "worker_restarted",
        "kv_event_gap",
        "xid_error",
        "shipment_rejected",
        "tool_schema_changed",
        "tokenizer_changed",
    }
)
"""Things that happen rather than last: they resolve themselves after EVENT_OPEN_FOR."""
EVENT_OPEN_FOR = timedelta(minutes=15)
MESSAGE_LENGTH_MAX = 500


@dataclass(frozen=True, slots=True)
class Observation:
    """A condition that holds, or an event that happened, at `subject` (worker or pool id)."""

    kind: str
    subject: str
    message: str
    severity: str = Finding.Severity.WARNING


def observe(observations: Sequence[Observation], *, at: datetime) -> None:
    """Open a finding for each observation, or repeat the open one: last_seen, count, message."""
    if not observations:
        return
    unique = {(item.kind, item.subject): item for item in observations}
    subjects = {item.subject for item in observations}
    known = Finding.objects.filter(subject__in=subjects, resolved_at=None)
    open_ones = {(finding.kind, finding.subject): finding for finding in known}
    repeated = [open_ones[key] for key in unique if key in open_ones]
    for finding in repeated:
        finding.message = unique[(finding.kind, finding.subject)].message[:MESSAGE_LENGTH_MAX]
        Finding.objects.filter(pk=finding.pk).update(message=finding.message, last_seen=at, count=F("count") + 1)
    # Two pollers may see the same thing at once: the partial unique constraint keeps one.
    Finding.objects.bulk_create(
        [_opened(item, at) for key, item in unique.items() if key not in open_ones], ignore_conflicts=True
    )


def _opened(item: Observation, at: datetime) -> Finding:
    return Finding(
        kind=item.kind,
        subject=item.subject,
        severity=item.severity,
        message=item.message[:MESSAGE_LENGTH_MAX],
        first_seen=at,
        last_seen=at,
    )


def resolve(subjects: Iterable[str], kinds: Iterable[str], *, at: datetime) -> int:
    """Close the open findings of these kinds at these subjects. How many there were."""
    return Finding.objects.filter(subject__in=list(subjects), kind__in=list(kinds), resolved_at=None).update(
        resolved_at=at
    )


def resolve_past_events(*, at: datetime) -> int:
    """Close event findings that have not recurred for EVENT_OPEN_FOR."""
    return Finding.objects.filter(kind__in=EVENT_KINDS, resolved_at=None, last_seen__lt=at - EVENT_OPEN_FOR).update(
        resolved_at=at
    )
