"""What the forms of both kinds of policy share: typed numbers, the end of an override, the picture of a dry run."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

from django.contrib import messages
from django.http import HttpRequest
from django.utils import timezone

from controlplane.errors import Invalid
from controlplane.rollouts.dry_run import MINUTES_DEFAULT, DryRun
from controlplane.snapshots.selectors import rollout
from dashboard import announce
from dashboard.charts.policies import load_figure

ENDS_MIN_MAX = 7 * 24 * 60
"""A week: what is meant to last longer is no override."""
MINUTES = (15, 60, 360)
"""Offered spans of a dry run."""


def revision_of(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None


def number_of(text: str) -> float:
    """NaN for what is no number."""
    try:
        return float(text.strip().replace(",", "."))
    except ValueError:
        return float("nan")


def ends_at(minutes: str) -> datetime | None:
    """Empty = it stays. Raises Invalid."""
    if not minutes:
        return None
    number = number_of(minutes)
    if not 0 < number <= ENDS_MIN_MAX:
        raise Invalid.field("expires_at", f"Minutes until the end: more than 0, at most {ENDS_MIN_MAX}.")
    return timezone.now() + timedelta(minutes=number)


def minutes_of(request: HttpRequest) -> int:
    """The span of a dry run; what is not offered counts as the default."""
    chosen = revision_of(request.POST.get("minutes", ""))
    return chosen if chosen in MINUTES else MINUTES_DEFAULT


def reason_of(request: HttpRequest) -> str:
    return request.POST.get("reason", "").strip()[:500]


def chart_of(preview: DryRun | None) -> str:
    """The figure as JSON; "" = there is nothing to draw."""
    if preview is None or not preview.workers:
        return ""
    return json.dumps(load_figure(preview.workers), separators=(",", ":"), allow_nan=False)


def published(request: HttpRequest, told: str) -> None:
    """Tell the person, and the open dashboards."""
    announce.changed("policy")
    version = rollout().version
    messages.success(
        request, f"{told} {f'Published v{version}.' if version else 'It is published as soon as possible.'}"
    )
