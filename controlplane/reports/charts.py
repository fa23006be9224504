"""The charts of a review: which figures of it are drawn, and how. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any

from django.utils.safestring import SafeString, mark_safe

from controlplane.reports import svg

Figures = Mapping[str, Any]
GREY = "#8A9099"
MEASURES = {"kv_use": "share", "goodput": "share", "prompt_tokens": "tokens", "ttft_p95_ms": "ms"}


def charts(figures: Figures) -> dict[str, SafeString]:
    """Name → SVG, "" where there is nothing to draw."""
    days = figures["days"]
    labels = [_label(row["day"]) for row in days]

    def line(name: str, color: str, field: str) -> svg.Line:
        return svg.Line(name, color, [row[field] for row in days])

    computed = [
        None if row["prompt_tokens"] is None else max(0, row["prompt_tokens"] - row["hit_tokens"]) for row in days
    ]
    found = {
        "tokens": svg.stacked_bars(
            "Prompt tokens a day: hit and computed", labels,
            [line("hit", svg.BLUE, "hit_tokens"), svg.Line("computed", GREY, computed)], unit="tokens",
        ),
        "ttft": svg.lines(
            "TTFT p95 a day: hits and misses", labels,
            [line("hit p95", svg.BLUE, "ttft_hit_p95_ms"), line("miss p95", svg.ORANGE, "ttft_miss_p95_ms")], unit="ms",
        ),
        "goodput": svg.lines(
            "Goodput and hit-token share a day", labels,
            [line("goodput", svg.GREEN, "goodput"), line("hit share", svg.BLUE, "hit_share")], unit="share",
        ),
    }  # fmt: skip
    # Every text in them is escaped where it is put in.
    return {name: mark_safe(text) for name, text in found.items()}  # noqa: S308


def forecast_chart(row: Figures) -> SafeString:
    """History, the fitted line and its interval, and the limit; "" without enough history."""
    if not row["enough"]:
        return mark_safe("")
    points = {date.fromisoformat(day): value for day, value in row["points"]}
    ahead = {date.fromisoformat(day): rest for day, *rest in row["line"]}
    days = [min(points) + timedelta(days=n) for n in range((max(ahead) - min(points)).days + 1)]
    expected, low, high = (_between(days, ahead, index) for index in range(3))
    unit = MEASURES[row["measure"]]
    limit = None if row["limit"] is None else (f"limit {svg.tick(row['limit'], unit)}", row["limit"])
    series = [
        svg.Line("measured", svg.BLUE, [points.get(day) for day in days]),
        svg.Line("expected", svg.ORANGE, expected),
    ]
    title = f"{row['subject']}: {row['measure'].replace('_', ' ')}, measured and forecast"
    labels = [_label(day.isoformat()) for day in days]
    text = svg.lines(title, labels, series, unit=unit, limit=limit, band=svg.Band(low, high, svg.ORANGE))
    return mark_safe(text)  # noqa: S308  escaped where it is put in


def _between(days: Sequence[date], known: Mapping[date, Sequence[float]], index: int) -> list[float | None]:
    """Weekly values, joined by straight lines; unknown before the first."""
    marks = sorted(known)
    found: list[float | None] = []
    for day in days:
        after = next((mark for mark in marks if mark >= day), None)
        before = next((mark for mark in reversed(marks) if mark <= day), None)
        if after is None or before is None:
            found.append(None)
        elif after == before:
            found.append(known[day][index])
        else:
            part = (day - before).days / (after - before).days
            found.append(known[before][index] * (1 - part) + known[after][index] * part)
    return found


def _label(day: str) -> str:
    at = date.fromisoformat(day)
    return f"{at.day} {at:%b}"
