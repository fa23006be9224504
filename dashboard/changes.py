"""Changes that may have moved a figure: what the audit log has of policies, roll-outs, templates, workers and pools."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from controlplane.audit.models import AuditEntry
from controlplane.namespaces.change_log import about
from controlplane.rollouts.models import Rollout
from controlplane.telemetry.windows import Scope

KINDS = ("watermark", "routing", "rollout", "template", "placement", "worker", "pool", "namespace")
SHOWN = 20
LOOKED_BACK = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Change:
    at: datetime
    words: str
    """`watermark pool:llama set`. Not who did it: that is for who may read the audit log."""


def recent_changes(scope: Scope, *, now: datetime) -> list[Change]:
    """The newest first; of a tenant, those about it alone. One query."""
    entries = AuditEntry.objects.filter(at__gte=now - LOOKED_BACK, at__lte=now, object_type__in=KINDS)
    tenant = scope.tenant or scope.namespace.partition("/")[0]
    if tenant:
        entries = entries.filter(about([tenant]))
    rows = entries.order_by("-id").values_list("at", "action", "object_id")[:SHOWN]
    return [Change(at, _words(action, name)) for at, action, name in rows]


def recent_rollouts(scope: Scope, *, now: datetime) -> list[Rollout]:
    """Roll-outs that a comparison can name, the newest first. One query."""
    return list(Rollout.objects.order_by("-pk")[:SHOWN])


def _words(action: str, name: str) -> str:
    kind, _, verb = action.partition(".")
    return f"{kind} {name} {verb.replace('_', ' ')}".strip()
