"""The panel of the go-live checklist."""

from __future__ import annotations

from controlplane.checklist.selectors import checklist
from dashboard.data import PageData
from dashboard.panels.base import Context, Panel


def _checklist(data: PageData) -> Context:
    lines = checklist(now=data.now)
    return {
        "lines": lines,
        "counts": {state: sum(line.state == state for line in lines) for state in ("green", "red", "unknown")},
    }


PANELS = (
    Panel(
        "checklist",
        "Go-live checklist",
        "Each line is held against the live fleet. Green: seen, with its evidence. Unknown: nothing was seen that "
        "could tell; it is not good.",
        _checklist,
    ),
)
