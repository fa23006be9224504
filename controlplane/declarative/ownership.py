"""What a file manages is edited in the file: the API and the dashboard get a Conflict that names it.

Emergency levers stay with the operator: suspending, revoking, rotating, draining, ending what is shared.
"""

from __future__ import annotations

from controlplane.declarative.models import ManagedObject
from controlplane.errors import Conflict
from controlplane.policies.models import Rollout

EDITS = frozenset(
    {
        "tenant.update",
        "namespace.update",
        "namespace.share",
        "pool.update",
        "pool.delete",
        "worker.update",
        "worker.delete",
        "watermark.set",
        "watermark.clear",
        "watermark.rollback",
        "routing.set",
        "routing.clear",
        "routing.rollback",
        "rollout.start",
        "template.draft",
        "template.edit",
        "template.publish",
        "alert_rule.update",
        "alert_rule.delete",
        "webhook.update",
        "webhook.delete",
        "report.update",
        "report.delete",
    }
)
"""Audit actions that a file would take back at its next apply."""
SYSTEM = "system:"
"""Actors of the installation itself begin so: applying a file, ending an override, completing a roll-out."""


def refuse_other_editors(*, actor: str, action: str, object_type: str, object_id: str) -> None:
    """Raises Conflict (`managed`) for an edit by hand of what a file manages. One query, for edits alone."""
    if action not in EDITS or actor.startswith(SYSTEM):
        return
    kind, name = _edited(object_type, object_id)
    manager = ManagedObject.objects.filter(object_type=kind, object_id=name).values_list("manager", flat=True).first()
    if manager:
        raise Conflict(
            f"The {kind} {name} is managed by {manager!r}: change it there and apply the file.", code="managed"
        )


def _edited(object_type: str, object_id: str) -> tuple[str, str]:
    """A template's versions belong to the template, a roll-out to the policy that it would change."""
    if object_type == "template":
        return object_type, object_id.partition("@")[0]
    if object_type == "rollout":
        rollout = Rollout.objects.filter(pk=object_id).values("kind", "scope").first()
        return (rollout["kind"], rollout["scope"]) if rollout else ("", "")
    return object_type, object_id


def managers() -> dict[tuple[str, str], str]:
    """(object type, id) → manager, of every managed object."""
    return {(row.object_type, row.object_id): row.manager for row in ManagedObject.objects.order_by()}


def note_manager(object_type: str, object_id: str, manager: str) -> None:
    """ "" lets go of the object. Called inside the transaction of an apply, which records it."""
    rows = ManagedObject.objects.filter(object_type=object_type, object_id=object_id)
    if not manager:
        rows.delete()
    else:
        ManagedObject.objects.update_or_create(
            object_type=object_type, object_id=object_id, defaults={"manager": manager}
        )
