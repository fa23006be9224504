"""Filters of the reports' templates: times that the figures carry as text, money, differences."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from django import template

register = template.Library()

UNKNOWN = "–"


@register.filter
def local(text: str, zone: ZoneInfo) -> str:
    """An ISO time in the report's zone: `2026-11-30 08:00 CET`."""
    return datetime.fromisoformat(text).astimezone(zone).strftime("%Y-%m-%d %H:%M %Z")


@register.filter
def local_day(text: str, zone: ZoneInfo) -> str:
    return datetime.fromisoformat(text).astimezone(zone).date().isoformat()


@register.filter
def money(value: float | None, currency: str) -> str:
    """Two decimals below 1,000, none above."""
    if value is None:
        return UNKNOWN
    return f"{value:,.2f} {currency}" if abs(value) < 1000 else f"{value:,.0f} {currency}"


@register.simple_tag
def against(value: float | None, before: float | None, kind: str = "ratio") -> str:
    """`+3.2 points` of a share, or `+12 %` of anything else; "" where one of both is unknown."""
    if value is None or before is None:
        return ""
    if kind == "points":
        change, unit, digits = (value - before) * 100, "points", 1
    elif not before:
        return ""
    else:
        change, unit, digits = (value / before - 1) * 100, "%", 0
    if abs(change) < 0.5 * 10**-digits:
        return "as before"
    return f"{change:+.{digits}f} {unit}".replace("-", "−")


@register.filter
def in_points(share: float | None) -> str:
    """A difference of shares: `+1.2 points`."""
    return UNKNOWN if share is None else f"{share * 100:+.1f} points".replace("-", "−")


@register.filter
def thousandths(seconds: float | None) -> float | None:
    """Seconds → milliseconds."""
    return None if seconds is None else seconds * 1000
