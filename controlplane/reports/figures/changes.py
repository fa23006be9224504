"""What was changed in the span, from the audit log."""

from __future__ import annotations

from typing import Any

from django.db.models import Q

from controlplane.audit.models import AuditEntry
from controlplane.namespaces.change_log import about
from controlplane.reports.figures.span import Subject

SHOWN = 50
KINDS = (
    "watermark.", "routing.", "rollout.", "template.", "worker.", "pool.", "model.", "tenant.", "namespace.",
    "trust_group.", "placement.", "file.",
)  # fmt: skip
"""Actions that can change what a figure shows. Checks of workers, sign-ins and reports cannot."""
NOT = ("worker.canary", "worker.ttft_audit", "worker.test")


def changes(subject: Subject) -> dict[str, Any]:
    """The newest, and how many there were. In a tenant's report those about the tenant; people are not named there."""
    kinds = Q()
    for kind in KINDS:
        kinds |= Q(action__startswith=kind)
    rows = AuditEntry.objects.filter(kinds, at__gte=subject.from_, at__lt=subject.to).exclude(action__in=NOT)
    if subject.tenant:
        rows = rows.filter(about([subject.tenant]))
    return {
        "count": rows.count(),
        "rows": [
            {
                "at": row.at.isoformat(),
                "action": row.action,
                "object": row.object_id,
                "actor": "" if subject.tenant else row.actor,
                "reason": row.reason,
            }
            for row in rows.order_by("-id")[:SHOWN]
        ],
    }
