"""The measure of a rule over the last day, with its limits."""

from __future__ import annotations

import json
from zoneinfo import ZoneInfo

from controlplane.alerts.measures import MEASURES
from controlplane.alerts.models import AlertRule
from controlplane.alerts.preview import Preview
from dashboard.charts.base import AMBER, GREEN, HIT, Figure, begin_with_data, figure, line

POINTS_MAX = 600


def preview_figure(found: Preview, rule: AlertRule, zone: ZoneInfo) -> Figure:
    """The worst subject's value; of a day of minutes every third, the worst of three."""
    measure = MEASURES[rule.measure]
    factor = 100.0 if measure.unit in ("share", "ratio") else 1.0
    stride = -(-len(found.values) // POINTS_MAX) or 1
    pick = max if rule.comparison == "above" else min
    starts = found.starts()[::stride]
    groups = [found.values[at : at + stride] for at in range(0, len(found.values), stride)]
    values = [
        pick(known) * factor if (known := [value for value in group if value is not None]) else None for group in groups
    ]
    x = [at.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S") for at in starts]
    data = [
        line(measure.label, x, values, colour=HIT),
        line("fires", [x[0], x[-1]], [rule.threshold * factor] * 2, colour=AMBER, dash="dash"),
    ]
    if rule.clear_at is not None:
        data.append(line("ends", [x[0], x[-1]], [rule.clear_at * factor] * 2, colour=GREEN, dash="dot"))
    unit = {"share": "%", "ratio": "% of the budget"}.get(measure.unit, measure.unit)
    return begin_with_data(figure(data, y_title=unit), [values])


def figure_text(drawn: Figure) -> str:
    return json.dumps(drawn, separators=(",", ":"), allow_nan=False)
