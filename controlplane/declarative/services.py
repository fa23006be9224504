"""Exporting and applying files. An apply is one transaction over the services that REST uses, or nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from django.db import transaction

from controlplane.audit.services import lock_chain, record
from controlplane.declarative import documents, ownership
from controlplane.declarative.documents import Document, FileError, Spec
from controlplane.declarative.kind import Change
from controlplane.declarative.planning import KINDS, Step, plan, summary
from controlplane.declarative.sealing import SEALED_KIND, seal, unseal
from controlplane.errors import ControlError

SEALED_NAME = "state"
"""Name of the one document of sealed states."""


def export(*, with_secrets: bool = False) -> str:
    """The whole configuration as YAML: sorted, defaults left out, equal state to equal bytes.

    With secrets it also holds keys and, sealed by the fleet key, what makes the same snapshot in an empty database.
    """
    with transaction.atomic():
        lock_chain()
        managed = ownership.managers()
        found: list[Document] = []
        sealed: Spec = {}
        for kind in KINDS:
            states = kind.seal() if with_secrets else {}
            sealed |= {f"{kind.name} {name}": seal(kind.name, name, state) for name, state in states.items()}
            if kind.only_with_secrets and not with_secrets:
                continue
            for name, spec in sorted(kind.read().items()):
                if not kind.only_with_secrets or name in states:
                    manager = managed.get((kind.object_type, name), "")
                    found.append(Document(kind.name, name, kind.shown(spec), manager))
    if sealed:
        found.append(Document(SEALED_KIND, SEALED_NAME, {"objects": sealed}))
    return documents.dump(found)


def diff(text: str, *, file: str, prune: bool = False) -> list[Step]:
    """What an apply would do. Raises FileError."""
    plain, _ = _read(text, file)
    return plan(plain, prune=prune)


def apply(
    text: str, *, file: str, actor: str, prune: bool = False, dry_run: bool = False, reason: str = ""
) -> list[Step]:
    """Bring the database to what the file says; a dry run does so and takes it back.

    Raises FileError, whose message begins with file and line, before anything has changed.
    """
    plain, sealed = _read(text, file)
    digest = hashlib.sha256(text.encode()).hexdigest()
    change = Change(actor=actor, reason=reason or f"applied from a file ({digest[:12]})", sealed=sealed)
    with transaction.atomic():
        lock_chain()
        steps = plan(plain, prune=prune)
        created = {(step.kind.name, step.name) for step in steps if step.verb == "create"}
        _carry_out(steps, replace(change, created=created))
        if steps:
            _record(steps, digest, change)
        transaction.set_rollback(dry_run)
    return steps


def _read(text: str, file: str) -> tuple[list[Document], dict[tuple[str, str], Spec]]:
    """(documents of objects, their sealed states)."""
    every = documents.parse(text, file=file)
    sealed: dict[tuple[str, str], Spec] = {}
    for document in every:
        if document.kind == SEALED_KIND:
            sealed |= _unsealed(document)
    return [document for document in every if document.kind != SEALED_KIND], sealed


def _unsealed(document: Document) -> dict[tuple[str, str], Spec]:
    objects = document.spec.get("objects")
    if set(document.spec) != {"objects"} or not isinstance(objects, dict):
        raise document.error("is a mapping from objects to texts", "spec.objects")
    found = {}
    for title, text in objects.items():
        kind, _, name = title.partition(" ")
        try:
            found[kind, name] = unseal(kind, name, str(text))
        except ValueError as error:
            raise document.error(str(error), f"spec.objects.{title}") from None
    return found


def _carry_out(steps: Sequence[Step], change: Change) -> None:
    for step in steps:
        _told_where(step, change, _do)
    for step in steps[::-1]:
        if step.verb == "create":
            _told_where(step, change, _finish)


def _do(step: Step, change: Change) -> None:
    if step.verb == "create":
        step.kind.create(step.name, step.wanted, change)
    elif step.verb == "remove":
        step.kind.remove(step.name, change)
    elif step.changes:
        step.kind.update(step.name, step.wanted, step.current, change)
    ownership.note_manager(step.kind.object_type, step.name, step.manager)


def _finish(step: Step, change: Change) -> None:
    step.kind.finish(step.name, step.wanted, change)


def _told_where(step: Step, change: Change, act: Callable[[Step, Change], None]) -> None:
    try:
        act(step, change)
    except (ControlError, ValueError) as error:
        if isinstance(error, FileError):
            raise
        raise _located(step, error) from error


def _located(step: Step, error: Exception) -> FileError:
    message = error.message if isinstance(error, ControlError) else str(error)
    if step.document is None:
        return FileError(f"{step.kind.name} {step.name}: it cannot be taken away: {message}")
    errors = error.errors if isinstance(error, ControlError) else []
    field = errors[0]["field"] if errors else ""
    return step.document.error(message, f"spec.{field}" if field else "")


def _record(steps: Iterable[Step], digest: str, change: Change) -> None:
    record(
        actor=change.actor,
        action="file.apply",
        object_type="file",
        object_id=digest[:64],
        before=None,
        after={
            "summary": summary(list(steps)),
            "managers": [
                f"{step.kind.object_type} {step.name}: {step.manager or 'nobody'}"
                for step in steps
                if step.manager != step.manager_now
            ][:1000],
        },
        affects_routing=False,
        reason=change.reason,
    )
