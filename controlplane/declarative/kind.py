"""What a kind of document is: its fields, and how it is read, made, changed and taken away through the services."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from controlplane.declarative.documents import Document, Spec


@dataclass(frozen=True, slots=True)
class Field:
    types: tuple[type, ...]
    default: Any = None
    """Any: JSON. What holds where a file says nothing; left out of exports."""
    is_required: bool = False
    is_set: bool = False
    """A list whose order means nothing."""

    def fits(self, value: object) -> bool:
        """JSON's true is not a number."""
        if isinstance(value, bool):
            return bool in self.types
        return isinstance(value, self.types)

    def normal(self, value: Any) -> Any:
        return sorted(set(value)) if self.is_set and all(isinstance(item, str) for item in value) else value


TEXT, LIST, FLAG = (str,), (list,), (bool,)
WHOLE, NUMBER = (int,), (int, float)
OR_NONE = (type(None),)


@dataclass(frozen=True, slots=True)
class Change:
    """One apply, as the services are told of it."""

    actor: str
    reason: str
    sealed: Mapping[tuple[str, str], Spec] = field(default_factory=dict, repr=False)
    """(kind, name) → what only an export with secrets holds: nonces, keyed hashes, what two persons agreed on."""

    created: AbstractSet[tuple[str, str]] = frozenset()
    """(kind, name) of what this apply makes."""

    def sealed_for(self, kind: str, name: str) -> Spec | None:
        return self.sealed.get((kind, name))


def _nothing(name: str, wanted: Spec, change: Change) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    object_type: str
    """As in the audit log."""
    fields: Mapping[str, Field]
    read: Callable[[], dict[str, Spec]]
    """Every object, by name, with all fields."""
    create: Callable[[str, Spec, Change], None]
    update: Callable[[str, Spec, Spec, Change], None]
    """(name, wanted, current, change)"""
    remove: Callable[[str, Change], None]
    """What takes it out of use; most objects are revoked rather than deleted."""
    is_gone: Callable[[Spec], bool] = lambda spec: False
    """Whether removing it would change nothing."""
    finish: Callable[[str, Spec, Change], None] = _nothing
    """Of objects that were created, after every document: what would stand in the way of others before."""
    seal: Callable[[], dict[str, Spec]] = dict
    """State of every object for an export with secrets."""
    only_with_secrets: bool = False

    def wanted(self, document: Document) -> Spec:
        """The document's spec with defaults. Raises FileError at the first field that does not fit."""
        for name, value in document.spec.items():
            known = self.fields.get(name)
            if known is None:
                raise document.error(
                    f"there is no such field; there are: {', '.join(sorted(self.fields))}", f"spec.{name}"
                )
            if not known.fits(value):
                raise document.error(f"must be {_words(known)}", f"spec.{name}")
        missing = [name for name, known in self.fields.items() if known.is_required and name not in document.spec]
        if missing:
            raise document.error("is required", f"spec.{missing[0]}")
        return {name: known.normal(document.spec.get(name, known.default)) for name, known in self.fields.items()}

    def shown(self, spec: Spec) -> Spec:
        """Without what holds anyway."""
        return {
            name: spec[name] for name, known in self.fields.items() if known.is_required or spec[name] != known.default
        }


_WORDS = {str: "a text", list: "a list", bool: "true or false", int: "a whole number", float: "a number"}


def _words(known: Field) -> str:
    kinds = [item for item in known.types if item is not type(None) and not (item is int and float in known.types)]
    return " or ".join([_WORDS[item] for item in kinds] + (["null"] if type(None) in known.types else []))
