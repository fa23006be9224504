"""Changes to policies. A scope is `global`, `pool:<slug>` or `namespace:<tenant>/<slug>`.

Each change writes a revision, fills the scope's row with its values, and audits, in one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from controlplane.audit.services import lock_chain, record
from controlplane.errors import Conflict, Invalid, NotFound, Stale
from controlplane.policies import revisions
from controlplane.policies.models import PolicyRevision, Rollout, RoutingPolicy, WatermarkPolicy
from controlplane.policies.rows import (
    PolicyRow,
    Values,
    checked_values,
    fill,
    find_row,
    new_row,
    stored,
    values_of,
)
from controlplane.saving import save_checked

Kind = PolicyRevision.Kind
Origin = PolicyRevision.Origin
SYSTEM = "system:policies"


def set_watermark(
    *,
    actor: str,
    scope: str,
    low: float,
    high: float,
    dwell_s: float = 0.0,
    expires_at: datetime | None = None,
    if_revision: int | None = None,
    reason: str = "",
    request_id: str = "",
) -> WatermarkPolicy:
    """Create or change the watermark of a scope: see `set_policy`."""
    row = set_policy(
        kind=Kind.WATERMARK,
        scope=scope,
        values={"low": low, "high": high, "dwell_s": dwell_s},
        actor=actor,
        expires_at=expires_at,
        if_revision=if_revision,
        reason=reason,
        request_id=request_id,
    )
    assert isinstance(row, WatermarkPolicy)
    return row


def set_routing(
    *,
    actor: str,
    scope: str,
    values: Mapping[str, Any],
    expires_at: datetime | None = None,
    if_revision: int | None = None,
    reason: str = "",
    request_id: str = "",
) -> RoutingPolicy:
    """Create or change the routing policy of a pool or namespace: see `set_policy`. Null fields are left out."""
    row = set_policy(
        kind=Kind.ROUTING,
        scope=scope,
        values=values,
        actor=actor,
        expires_at=expires_at,
        if_revision=if_revision,
        reason=reason,
        request_id=request_id,
    )
    assert isinstance(row, RoutingPolicy)
    return row


def set_policy(
    *,
    kind: str,
    scope: str,
    values: Mapping[str, Any],
    actor: str,
    expires_at: datetime | None = None,
    if_revision: int | None = None,
    reason: str = "",
    request_id: str = "",
) -> PolicyRow:
    """Put values in force at a scope; those that it has already change nothing.

    With `expires_at` they are an override: at that time what stood before them holds again, on each router by its own
    clock. `if_revision` 0 means "there is none yet". Raises Invalid with the fields' errors, NotFound, Stale, or
    Conflict while a roll-out of the scope is under way.
    """
    checked = checked_values(kind, scope, values)
    _check_end(scope, expires_at)
    with transaction.atomic():
        lock_chain()  # two first settings of one scope must not both insert
        row = find_row(kind, scope)
        _expect(row, if_revision)
        _refuse_during_rollout(kind, scope)
        if row and values_of(row) == checked and row.expires_at == expires_at:
            return row
        return put_in_force(
            kind, scope, checked, row=row, origin=Origin.SET, verb="set", actor=actor, reason=reason,
            request_id=request_id, expires_at=expires_at,
        )  # fmt: skip


def clear_watermark(
    *, actor: str, scope: str, if_revision: int | None = None, reason: str = "", request_id: str = ""
) -> None:
    """Remove a pool's or namespace's own watermark: see `clear_policy`."""
    clear_policy(
        kind=Kind.WATERMARK, scope=scope, actor=actor, if_revision=if_revision, reason=reason, request_id=request_id
    )


def clear_policy(
    *, kind: str, scope: str, actor: str, if_revision: int | None = None, reason: str = "", request_id: str = ""
) -> None:
    """Remove a scope's own policy, so that the wider one, or the settings, hold. The global one stays (Conflict)."""
    if scope == "global":
        raise Conflict("The global watermark always exists; change it instead.")
    with transaction.atomic():
        lock_chain()
        row = find_row(kind, scope)
        if row is None:
            raise NotFound(f"There is no {kind} policy for {scope!r}.")
        _expect(row, if_revision)
        _refuse_during_rollout(kind, scope)
        take_out_of_force(
            row, kind, origin=Origin.CLEAR, verb="clear", actor=actor, reason=reason, request_id=request_id
        )


def rollback_policy(
    *,
    kind: str,
    scope: str,
    actor: str,
    to: int | None = None,
    if_revision: int | None = None,
    reason: str = "",
    request_id: str = "",
) -> PolicyRevision:
    """A revision equal to an earlier one (`to`, else the one in force before): history is never rewritten.

    Raises NotFound without such a revision, Stale, or Conflict while a roll-out of the scope is under way.
    """
    with transaction.atomic():
        lock_chain()
        row = find_row(kind, scope)
        _expect(row, if_revision)
        _refuse_during_rollout(kind, scope)
        newest = revisions.newest_number(kind, scope)
        target = revisions.before(kind, scope, newest) if to is None else revisions.revision(kind, scope, to)
        _repeat(kind, scope, target, row, Origin.ROLLBACK, "rollback", actor, reason, request_id)
        return revisions.revision(kind, scope, revisions.newest_number(kind, scope))


def expire_overrides(now: datetime | None = None) -> int:
    """Replace overrides that have ended by what stands behind them. How many. Routers ended them by themselves."""
    moment = now or timezone.now()
    ended = 0
    for kind in Kind.values:
        for row in stored(kind).filter(expires_at__lte=moment):
            ended += _end_override(kind, row.scope_id, moment)
    return ended


def _end_override(kind: str, scope: str, now: datetime) -> int:
    with transaction.atomic():
        lock_chain()
        row = find_row(kind, scope)
        if row is None or row.expires_at is None or row.expires_at > now:
            return 0
        reason = "The override ended."
        if row.standing is None:
            take_out_of_force(row, kind, origin=Origin.EXPIRY, verb="expire", actor=SYSTEM, reason=reason)
        else:
            target = revisions.revision(kind, scope, row.standing)
            _repeat(kind, scope, target, row, Origin.EXPIRY, "expire", SYSTEM, reason, "")
    return 1


def ensure_global() -> WatermarkPolicy:
    """The global watermark, made with the default values where it is missing. Repeating it changes nothing."""
    with transaction.atomic():
        row, made = WatermarkPolicy.objects.get_or_create(scope=WatermarkPolicy.Scope.GLOBAL)
        if made:
            first = revisions.append(
                kind=Kind.WATERMARK, scope="global", values=values_of(row), origin=Origin.SET, author=SYSTEM
            )
            WatermarkPolicy.objects.filter(pk=row.pk).update(revision=first.number)
            row.revision = first.number
    return row


def put_in_force(
    kind: str,
    scope: str,
    values: Values,
    *,
    row: PolicyRow | None,
    origin: Origin,
    verb: str,
    actor: str,
    reason: str = "",
    request_id: str = "",
    repeats: int | None = None,
    expires_at: datetime | None = None,
) -> PolicyRow:
    """Revision, row and audit entry, inside the caller's transaction with the chain locked."""
    before = _facts(row) if row else None
    written = revisions.append(
        kind=kind, scope=scope, values=values, origin=origin, author=actor, reason=reason, repeats=repeats,
        expires_at=expires_at,
    )  # fmt: skip
    standing = _standing(row) if expires_at else None
    row = row or new_row(kind, scope)
    fill(row, values)
    row.revision, row.expires_at, row.standing = written.number, expires_at, standing
    save_checked(row)
    _record(kind, scope, actor=actor, verb=verb, before=before, after=_facts(row), reason=reason, request_id=request_id)
    return row


def take_out_of_force(
    row: PolicyRow, kind: str, *, origin: Origin, verb: str, actor: str, reason: str = "", request_id: str = ""
) -> None:
    """The scope has no policy of its own any more; inside the caller's transaction with the chain locked."""
    scope = row.scope_id
    revisions.append(kind=kind, scope=scope, values=None, origin=origin, author=actor, reason=reason)
    before = _facts(row)
    row.delete()
    _record(kind, scope, actor=actor, verb=verb, before=before, after=None, reason=reason, request_id=request_id)


def _repeat(
    kind: str,
    scope: str,
    target: PolicyRevision,
    row: PolicyRow | None,
    origin: Origin,
    verb: str,
    actor: str,
    reason: str,
    request_id: str,
) -> None:
    if target.values is not None:
        put_in_force(
            kind, scope, target.values, row=row, origin=origin, verb=verb, actor=actor, reason=reason,
            request_id=request_id, repeats=target.number,
        )  # fmt: skip
    elif row is None:
        raise Conflict(f"The {kind} policy of {scope} is cleared already.")
    else:
        take_out_of_force(row, kind, origin=origin, verb=verb, actor=actor, reason=reason, request_id=request_id)


def _standing(row: PolicyRow | None) -> int | None:
    """The revision behind an override that replaces `row`: an override of an override ends where the first would."""
    if row is None:
        return None
    return row.revision if row.expires_at is None else row.standing


def _check_end(scope: str, expires_at: datetime | None) -> None:
    if expires_at is None:
        return
    if scope == "global":
        raise Invalid.field("expires_at", "The global watermark does not end; override a pool or namespace instead.")
    if expires_at <= timezone.now():
        raise Invalid.field("expires_at", "The end must lie in the future.")


def _expect(row: PolicyRow | None, if_revision: int | None) -> None:
    current = row.revision if row else 0
    if if_revision is not None and if_revision != current:
        raise Stale(seen=if_revision, current=current)


def _refuse_during_rollout(kind: str, scope: str) -> None:
    if Rollout.objects.filter(kind=kind, scope=scope, state=Rollout.State.RUNNING).exists():
        raise Conflict("A roll-out of this policy is under way: finish it or roll it back first.")


def _facts(row: PolicyRow) -> dict[str, object]:
    facts: dict[str, object] = {**values_of(row), "revision": row.revision}
    return facts if row.expires_at is None else facts | {"expires_at": row.expires_at.isoformat()}


def _record(
    kind: str,
    scope: str,
    *,
    actor: str,
    verb: str,
    before: dict[str, object] | None,
    after: dict[str, object] | None,
    reason: str,
    request_id: str,
) -> None:
    record(
        actor=actor,
        action=f"{kind}.{verb}",
        object_type=kind,
        object_id=scope,
        before=before,
        after=after,
        affects_routing=True,
        reason=reason,
        request_id=request_id,
    )
