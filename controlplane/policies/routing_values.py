"""What a routing policy may say, by scope, and the rule of each field in words. No database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.errors import FieldError, Invalid
from controlplane.fleet.models import WorkerPool
from controlplane.namespaces.models import PRIORITY_MAX, PRIORITY_MIN

TTFT_SLO_MS_MAX = 600_000.0
VIRTUAL_NODES_MAX = 1000
SPILL_OUTSTANDING_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Field:
    fits: Callable[[object], bool]
    rule: str


def _whole(low: int, high: int) -> Field:
    return Field(
        lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high,
        f"must be a whole number from {low} to {high}.",
    )


def _is_objective(value: object) -> bool:
    """NaN and integers beyond any float compare as they should."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= TTFT_SLO_MS_MAX


FIELDS: dict[str, dict[str, Field]] = {
    "pool": {
        "routing": Field(
            lambda value: isinstance(value, str) and value in WorkerPool.Routing.values,
            f"must be one of {', '.join(WorkerPool.Routing.values)}.",
        ),
        "virtual_nodes": _whole(1, VIRTUAL_NODES_MAX),
        "spill_outstanding": _whole(1, SPILL_OUTSTANDING_MAX),
    },
    "namespace": {
        "priority": _whole(PRIORITY_MIN, PRIORITY_MAX),
        "ttft_slo_ms": Field(_is_objective, f"must be above 0 and at most {TTFT_SLO_MS_MAX:.0f} ms."),
        "shed_over_slo": Field(lambda value: isinstance(value, bool), "must be true or false."),
    },
}
"""Kind of scope → its fields."""


def checked_routing(scope: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are set; null means "as the settings say" and is left out. Raises Invalid naming each field."""
    fields = FIELDS.get(scope.partition(":")[0])
    if fields is None:
        raise Invalid.field("scope", "A routing policy's scope is pool:<pool> or namespace:<tenant>/<namespace>.")
    given = {name: value for name, value in values.items() if value is not None}
    errors = [
        FieldError(field=name, message=_fault(name, value, fields))
        for name, value in given.items()
        if name not in fields or not fields[name].fits(value)
    ]
    if errors:
        raise Invalid(errors[0]["message"], errors=errors)
    if not given:
        raise Invalid(f"Set at least one of: {', '.join(fields)}. To set nothing, clear the policy.")
    return dict(sorted(given.items()))


def _fault(name: str, value: object, fields: Mapping[str, Field]) -> str:
    if name in fields:
        return f"{name} {fields[name].rule}"
    scopes = [scope for scope, known in FIELDS.items() if name in known]
    return f"{name} belongs to a {scopes[0]}'s policy." if scopes else f"There is no field {name}."
