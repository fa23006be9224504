"""Forms as they were typed, with the errors of each field. The rules are the services': here text becomes values."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from django.http import HttpRequest

from controlplane.errors import ControlError, FieldError, Invalid

TEXT_MAX = 500
FORM = "form"
"""Where errors stand that belong to no field."""


@dataclass(frozen=True, slots=True)
class Form:
    values: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, list[str]] = field(default_factory=dict)

    def refused(
        self, error: ControlError, *, names: Mapping[str, str] | None = None, own: Collection[str] = ()
    ) -> Form:
        """The same values with what the service found wrong. `names`: field of the service → field of the form;
        `own`: the form's fields beside those it has values of."""
        known = {*self.values, *own}
        found: dict[str, list[str]] = {}
        for fault in error.errors or [FieldError(field="", message=error.message)]:
            name = (names or {}).get(fault["field"], fault["field"])
            found.setdefault(name if name in known else FORM, []).append(fault["message"])
        return Form(self.values, found)


def posted(request: HttpRequest, names: Collection[str]) -> dict[str, str]:
    """The named fields as typed, without the space around them; an absent one is empty."""
    return {name: request.POST.get(name, "").strip()[:TEXT_MAX] for name in names}


def reason_of(request: HttpRequest) -> str:
    return request.POST.get("reason", "").strip()[:TEXT_MAX]


def number(text: str, name: str) -> float | None:
    """None for an empty field. Raises Invalid naming it for what is no number."""
    if not text:
        return None
    try:
        value = float(text.replace(",", ".").replace(" ", ""))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise Invalid.field(name, "This is not a number.")
    return value


def whole(text: str, name: str) -> int | None:
    """As `number`, for whole ones."""
    value = number(text, name)
    if value is not None and (not value.is_integer() or abs(value) > 2**53):
        raise Invalid.field(name, "This is not a whole number.")
    return None if value is None else int(value)


def revision_of(text: str) -> int | None:
    """The revision that the person saw when the form was made; None for what is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None
