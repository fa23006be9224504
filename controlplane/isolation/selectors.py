"""Isolation violations, how much of the traffic was checked, and what needs an operator's eye."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from controlplane.isolation.models import IsolationViolation
from controlplane.telemetry.windows import Scope


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
    raise NotImplementedError


def isolation_coverage(scope: Scope, *, now: datetime | None = None) -> Coverage:
    raise NotImplementedError


def needs_attention(*, now: datetime | None = None, limit: int = 50) -> list[Attention]:
    """Open findings, open violations and workers whose figures are stale: critical first, then newest."""
    raise NotImplementedError
