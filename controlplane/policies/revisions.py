"""The history of a scope's policy: appended to, read, never changed."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Max, QuerySet
from django.utils import timezone

from controlplane.errors import NotFound
from controlplane.policies.models import PolicyRevision
from controlplane.policies.rows import Values, tenant_of
from controlplane.saving import save_checked

Origin = PolicyRevision.Origin


def append(
    *,
    kind: str,
    scope: str,
    values: Values | None,
    origin: Origin,
    author: str,
    reason: str = "",
    repeats: int | None = None,
    expires_at: datetime | None = None,
) -> PolicyRevision:
    """Call it with the audit chain locked: two writers must not take one number."""
    last = history(kind, scope).aggregate(last=Max("number"))["last"] or 0
    row = PolicyRevision(
        kind=kind,
        scope=scope,
        tenant=tenant_of(scope),
        number=last + 1,
        values=values,
        origin=origin,
        author=author[:200],
        reason=reason[:500],
        repeats=repeats,
        expires_at=expires_at,
        created_at=timezone.now(),
    )
    save_checked(row)
    return row


def history(kind: str, scope: str) -> QuerySet[PolicyRevision]:
    """Every revision of a scope, candidates included, newest first."""
    return PolicyRevision.objects.filter(kind=kind, scope=scope)


def revision(kind: str, scope: str, number: int) -> PolicyRevision:
    """Raises NotFound."""
    row = history(kind, scope).filter(number=number).first()
    if row is None:
        raise NotFound(f"The {kind} policy of {scope} has no revision {number}.")
    return row


def in_force_at(at: datetime, *, pool: str, namespace: str) -> list[PolicyRevision]:
    """Of each kind and scope the revision that held then, narrowest scope first; scopes without a policy are left out.

    Overrides that ended and roll-outs on a share of the routers are not told apart here.
    """
    scopes = [f"namespace:{namespace}", f"pool:{pool}", "global"]
    rows = PolicyRevision.objects.filter(scope__in=scopes, created_at__lte=at).exclude(origin=Origin.CANDIDATE)
    newest = {(row.kind, row.scope): row for row in rows.order_by("number")}
    held = [row for row in newest.values() if row.values is not None]
    return sorted(held, key=lambda row: (row.kind != PolicyRevision.Kind.WATERMARK, scopes.index(row.scope)))


def before(kind: str, scope: str, number: int) -> PolicyRevision:
    """The revision that was in force before `number`. Raises NotFound."""
    earlier = history(kind, scope).filter(number__lt=number).exclude(origin=Origin.CANDIDATE)
    row = earlier.order_by("-number").first()
    if row is None:
        raise NotFound(f"The {kind} policy of {scope} has no earlier revision.")
    return row


def newest_number(kind: str, scope: str) -> int:
    """Of revisions that were in force; 0 = none."""
    rows = history(kind, scope).exclude(origin=Origin.CANDIDATE)
    return rows.aggregate(last=Max("number"))["last"] or 0
