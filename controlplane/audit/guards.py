"""Who else must agree before a change is recorded. Every service records its change inside the change's transaction,
so a guard that raises undoes it. Apps above register theirs: `audit` knows none of them."""

from __future__ import annotations

from typing import Protocol


class Guard(Protocol):
    def __call__(self, *, actor: str, action: str, object_type: str, object_id: str) -> None:
        """Raises ControlError to refuse the change."""


_guards: list[Guard] = []


def register_guard(guard: Guard) -> None:
    """Repeating it changes nothing."""
    if guard not in _guards:
        _guards.append(guard)


def check_guards(*, actor: str, action: str, object_type: str, object_id: str) -> None:
    for guard in _guards:
        guard(actor=actor, action=action, object_type=object_type, object_id=object_id)
