"""The form of an alert rule: what a person types (percent, minutes) to what a rule holds (shares, s), and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controlplane.alerts.measures import MEASURES
from controlplane.alerts.models import AlertRule
from controlplane.errors import ControlError, FieldError, Invalid

TEXTS = ("name", "measure", "comparison", "on_unknown", "severity", "tenant", "pool", "runbook", "runbook_url")
NUMBERS = ("threshold", "clear_at", "window_min", "for_min")
IN_PERCENT = ("share", "ratio")
UNIT_WORDS = {"share": "%", "ratio": "%", "ms": "ms", "s": "s", "count": "count"}
TEXT_MAX = 4000


@dataclass(frozen=True, slots=True)
class RuleForm:
    values: dict[str, str]
    errors: dict[str, list[str]] = field(default_factory=dict)
    stale: bool = False

    @property
    def unit(self) -> str:
        measure = MEASURES.get(self.values.get("measure", ""))
        return UNIT_WORDS[measure.unit] if measure else ""


def form_of(rule: AlertRule) -> RuleForm:
    """As stored."""
    factor = 100.0 if MEASURES[rule.measure].unit in IN_PERCENT else 1.0
    values = {name: str(getattr(rule, name)) for name in TEXTS}
    values |= {
        "slug": rule.slug,
        "threshold": f"{rule.threshold * factor:g}",
        "clear_at": "" if rule.clear_at is None else f"{rule.clear_at * factor:g}",
        "window_min": f"{rule.window_s / 60:g}",
        "for_min": f"{rule.for_s / 60:g}",
        "enabled": "on" if rule.enabled else "",
        "revision": str(rule.revision),
    }
    return RuleForm(values)


def typed(post: Mapping[str, str]) -> dict[str, str]:
    names = (*TEXTS, *NUMBERS, "slug", "enabled", "revision")
    return {name: post.get(name, "").strip()[:TEXT_MAX] for name in names}


def rule_values(given: Mapping[str, str]) -> dict[str, Any]:
    """What the services take. Raises Invalid naming the fields that are no numbers."""
    errors: list[FieldError] = []
    measure = MEASURES.get(given["measure"])
    factor = 100.0 if measure and measure.unit in IN_PERCENT else 1.0
    threshold = _number(given, "threshold", errors)
    clear_at = _number(given, "clear_at", errors, needed=False)
    window_min, for_min = _number(given, "window_min", errors), _number(given, "for_min", errors)
    if errors:
        raise Invalid(errors[0]["message"], errors=errors)
    return {
        **{name: given[name].replace("\r\n", "\n") for name in TEXTS},
        "threshold": _scaled(threshold, factor),
        "clear_at": _scaled(clear_at, factor),
        "window_s": round((window_min or 0) * 60),
        "for_s": round((for_min or 0) * 60),
        "enabled": given["enabled"] == "on",
    }


def faults(error: ControlError) -> dict[str, list[str]]:
    """By the form's names of the fields."""
    names = {"window_s": "window_min", "for_s": "for_min"}
    found: dict[str, list[str]] = {}
    for fault in error.errors or [FieldError(field="form", message=error.message)]:
        found.setdefault(names.get(fault["field"], fault["field"] or "form"), []).append(fault["message"])
    return found


def _scaled(value: float | None, factor: float) -> float | None:
    """Without the noise of dividing: 20 % is 0.2."""
    return None if value is None else float(f"{value / factor:.12g}")


def _number(given: Mapping[str, str], name: str, errors: list[FieldError], *, needed: bool = True) -> float | None:
    text = given[name].replace(",", ".").removesuffix("%").strip()
    if not text and not needed:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or abs(value) > 1e12:
        errors.append(FieldError(field=name, message="Type a number."))
        return None
    return value
