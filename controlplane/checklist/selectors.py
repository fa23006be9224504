"""The checklist of this moment."""

from __future__ import annotations

from datetime import datetime

from controlplane.checklist.checks import Line, judged
from controlplane.checklist.facts import read_facts


def checklist(*, now: datetime) -> list[Line]:
    """Twelve lines in the order of S1.9. Eight queries."""
    return judged(read_facts(now=now))
