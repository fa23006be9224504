"""Report schedules as the pages show and ask for them: words for what is due, recipients as lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.http import HttpRequest

from controlplane.errors import Invalid
from controlplane.reports import cron
from controlplane.reports.models import Format, ReportRun, ReportSchedule
from controlplane.reports.producing import STEPS
from dashboard.forms import number, posted, whole

FIELDS = (
    "slug", "name", "cron", "time_zone", "scope", "subject", "range_days", "recipients", "gpu_hour_cost", "currency",
    "revision",
)  # fmt: skip
_TEXTS = ("name", "cron", "time_zone", "scope", "subject", "currency")
RECIPIENTS_TEXT_MAX = 10_000
WEBHOOK = "webhook:"
PREVIEWED = 5
STEP_WORDS = {
    "requests": "Requests and hits, day by day",
    "capacity": "KV use, watermarks, evictions",
    "ranking": "Busiest tenants and prefixes",
    "forecast": "Forecasts, anomalies, changes",
    "what-if": "Simulated changes",
    "recommendations": "Recommendations",
    "html": "HTML",
    "pdf": "PDF",
    "csv": "CSV tables",
    "json": "JSON",
}


@dataclass(frozen=True, slots=True)
class Preview:
    """A cron expression in words and its next due times in its own zone, or what is wrong with it."""

    words: str = ""
    times: tuple[datetime, ...] = ()
    zone: ZoneInfo | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    words: str
    state: str
    """`done`, `now` or `later`."""


def preview(expression: str, zone: str, *, now: datetime) -> Preview:
    if not expression.strip():
        return Preview(error="")
    try:
        cron.check(expression, zone)
        times = cron.following(expression, zone, after=now, count=PREVIEWED)
        return Preview(cron.in_words(expression), tuple(times), cron.zone_named(zone))
    except cron.BadCron as error:
        return Preview(error=str(error))


def in_words(row: ReportSchedule) -> str:
    try:
        return cron.in_words(row.cron)
    except cron.BadCron:
        return row.cron


def steps(run: ReportRun) -> list[Step]:
    """Those that this run goes through, and how far it is."""
    formats = run.settings["formats"]
    wanted = [name for name in STEPS if name not in Format.values or name in formats]
    reached = STEPS.index(run.step) if run.step in STEPS else (len(STEPS) if run.state == run.State.DONE else -1)
    return [Step(STEP_WORDS[name], _state(STEPS.index(name), reached)) for name in wanted]


def typed(request: HttpRequest) -> dict[str, str]:
    """The form as it was sent. Recipients may be many lines."""
    values = posted(request, FIELDS)
    values["recipients"] = request.POST.get("recipients", "")[:RECIPIENTS_TEXT_MAX]
    values["formats"] = ",".join(name for name in Format.values if name in request.POST.getlist("formats"))
    values["enabled"] = "on" if request.POST.get("enabled") else ""
    return values


def stored(row: ReportSchedule) -> dict[str, str]:
    return {
        **{name: str(getattr(row, name)) for name in ("slug", *_TEXTS)},
        "range_days": str(row.range_days),
        "recipients": "\n".join(_line(item) for item in row.recipients),
        "gpu_hour_cost": "" if row.gpu_hour_cost is None else f"{row.gpu_hour_cost:g}",
        "formats": ",".join(row.formats),
        "enabled": "on" if row.enabled else "",
        "revision": str(row.revision),
    }  # fmt: skip


def values_of(form: Mapping[str, str]) -> dict[str, Any]:
    """What the service takes. Raises Invalid naming the field."""
    days = whole(form["range_days"], "range_days")
    if days is None or not 1 <= days <= 365:
        raise Invalid.field("range_days", "Between 1 and 365 days.")
    cost = number(form["gpu_hour_cost"], "gpu_hour_cost")
    return {
        **{name: form[name] for name in _TEXTS},
        "range_days": days,
        "gpu_hour_cost": cost,
        "formats": [name for name in form["formats"].split(",") if name],
        "recipients": [_recipient(line) for line in form["recipients"].splitlines() if line.strip()],
        "enabled": bool(form["enabled"]),
    }


def _recipient(line: str) -> dict[str, str]:
    text = line.strip()
    if text.startswith(WEBHOOK):
        return {"kind": "webhook", "to": text.removeprefix(WEBHOOK).strip()}
    return {"kind": "email", "to": text}


def _line(recipient: Mapping[str, str]) -> str:
    return f"{WEBHOOK}{recipient['to']}" if recipient["kind"] == "webhook" else recipient["to"]


def _state(place: int, reached: int) -> str:
    return "done" if place < reached else "now" if place == reached else "later"
