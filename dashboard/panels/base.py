"""What a panel is: a figure, a table or a list with its age, its help and its empty state."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from controlplane.telemetry.figures import Values
from dashboard.charts.base import Figure, begin_with_data
from dashboard.data import PageData
from dashboard.freshness import Freshness
from dashboard.tables import Table

Context = dict[str, Any]
"""Template context: values of any type."""


@dataclass(frozen=True, slots=True)
class Panel:
    """`template` renders alone, in an element with id `panel-<name>`."""

    name: str
    title: str
    help: str
    context: Callable[[PageData], Context]
    fresh: Callable[[PageData], Freshness] | None = None
    template: str = ""
    table: Callable[[PageData], Table] | None = None
    """The figure's values: a panel that has one is a chart, offered as table, CSV and picture."""
    of_tenants: bool = False
    """Whether everything it shows is of the state's tenant, when that names one: only such panels are shown to who
    holds a role in single tenants."""

    @property
    def template_name(self) -> str:
        return f"dashboard/_fragments/{self.template or self.name}.html"


def chart_context(
    figure: Figure, known: list[Values], missing: str, next_step: str, *, from_first: bool = True
) -> Context:
    """Context of a chart: the figure, or what is missing and the next step when no bucket holds anything.

    `known`: the series that count as data. `from_first` cuts a time axis to where they begin.
    """
    empty = not any(value is not None for values in known for value in values)
    if not empty and from_first:
        figure = begin_with_data(figure, known)
    return {
        "figure": "" if empty else json.dumps(figure, separators=(",", ":"), allow_nan=False),
        "missing": missing,
        "next_step": next_step,
    }


def mean(values: Values) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
