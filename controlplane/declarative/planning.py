"""What a file and the database differ in. Reads; `services` carries it out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from controlplane.declarative import keys, ownership, policy_kinds, serving, template_kind, tenancy, watching
from controlplane.declarative.documents import Document, Spec
from controlplane.declarative.kind import Kind
from controlplane.declarative.sealing import SEALED_KIND

KINDS: tuple[Kind, ...] = (
    tenancy.TENANT,
    tenancy.TRUST_GROUP,
    tenancy.NAMESPACE,
    serving.POOLS,
    serving.WORKERS,
    template_kind.TEMPLATES,
    policy_kinds.WATERMARKS,
    policy_kinds.ROUTING,
    keys.API_KEY,
    watching.ALERT_RULE,
    watching.WEBHOOK,
    watching.SCHEDULE,
)
"""In the order in which they are made; they are taken away the other way round."""
BY_NAME = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True, slots=True)
class Step:
    verb: Literal["create", "update", "remove"]
    kind: Kind
    name: str
    document: Document | None
    wanted: Spec
    current: Spec
    manager: str = ""
    manager_now: str = ""

    @property
    def changes(self) -> bool:
        """Whether more than the manager differs."""
        return self.verb != "update" or self.wanted != self.current

    def lines(self) -> list[str]:
        """As a person reads it; texts of prompts are told by their length."""
        sign = {"create": "+", "update": "~", "remove": "-"}[self.verb]
        found = [f"{sign} {self.kind.name} {self.name}"]
        shown = self.kind.shown(self.wanted) if self.verb == "create" else {}
        found += [f"    {field}: {_short(value)}" for field, value in sorted(shown.items())]
        if self.verb == "update":
            found += [
                f"    {field}: {_short(self.current[field])} → {_short(self.wanted[field])}"
                for field in sorted(self.wanted)
                if self.wanted[field] != self.current[field]
            ]
        if self.manager != self.manager_now:
            found.append(f"    managed-by: {self.manager_now or 'nobody'} → {self.manager or 'nobody'}")
        return found


def plan(documents: Iterable[Document], *, prune: bool) -> list[Step]:
    """Steps in the order of their execution. Raises FileError for a document that fits no kind."""
    by_kind: dict[str, list[Document]] = {}
    for document in documents:
        if document.kind not in BY_NAME:
            raise document.error(f"there is no such kind; there are: {', '.join(BY_NAME)}, {SEALED_KIND}", "kind")
        by_kind.setdefault(document.kind, []).append(document)
    managed = ownership.managers()
    present = {name for found in by_kind.values() for name in (document.manager for document in found) if name}
    made: list[Step] = []
    removed: list[Step] = []
    for kind in KINDS:
        found = by_kind.get(kind.name, [])
        current = kind.read()
        made += [step for step in (_step(kind, document, current, managed) for document in found) if step]
        if prune:
            removed += _removals(kind, {document.name for document in found}, current, managed, present)
    return made + removed[::-1]


def _step(kind: Kind, document: Document, current: dict[str, Spec], managed: dict[tuple[str, str], str]) -> Step | None:
    wanted, known = kind.wanted(document), current.get(document.name)
    manager_now = managed.get((kind.object_type, document.name), "")
    if known is None:
        return Step("create", kind, document.name, document, wanted, {}, document.manager, manager_now)
    if wanted == known and document.manager == manager_now:
        return None
    return Step("update", kind, document.name, document, wanted, known, document.manager, manager_now)


def _removals(
    kind: Kind,
    named: set[str],
    current: dict[str, Spec],
    managed: dict[tuple[str, str], str],
    present: set[str],
) -> list[Step]:
    """What a manager of this file manages and the file does not name. Nothing else is ever taken away."""
    gone = [
        name
        for name in sorted(current)
        if name not in named and managed.get((kind.object_type, name)) in present and not kind.is_gone(current[name])
    ]
    return [Step("remove", kind, name, None, {}, current[name], "", managed[kind.object_type, name]) for name in gone]


def summary(steps: Sequence[Step]) -> str:
    counts = [(verb, sum(step.verb == verb for step in steps)) for verb in ("create", "update", "remove")]
    return ", ".join(f"{count} to {verb}" for verb, count in counts if count) or "no changes"


def _short(value: object) -> str:
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return f"{len(value)} versions"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 100 else f"{text[:97]}…"
