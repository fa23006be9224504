"""Which changes need two persons. The app that owns a change registers it when it is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from controlplane.errors import Invalid


class Apply(Protocol):
    def __call__(
        self, *, subject: str, change: dict[str, Any], actor: str, reason: str, request_id: str
    ) -> object:  # Any: JSON, of the kind's own shape
        """Make the change, inside the approval's transaction. `actor` is the approver. Raises ControlError."""


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    apply: Apply
    check: Callable[[str, dict[str, Any]], None]
    """(subject, change): raises ControlError for what could never be applied, before anybody is asked."""


_kinds: dict[str, Kind] = {}


def register_change(kind: Kind) -> None:
    """Repeating it replaces the former registration."""
    _kinds[kind.name] = kind


def kind_of(name: str) -> Kind:
    """Raises Invalid."""
    kind = _kinds.get(name)
    if kind is None:
        known = ", ".join(sorted(_kinds)) or "none"
        raise Invalid.field("kind", f"There is no such kind of change; there are: {known}.")
    return kind


def kinds() -> list[str]:
    return sorted(_kinds)
