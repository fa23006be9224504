"""Staged roll-outs of a policy: begun, moved on, rolled back or completed. Each step is one audited transaction.

A roll-out writes its candidate as a revision that is not in force. Routers below the stage's share have its values as
a variant of the snapshot; the scope's own row stays as it is until the last stage has passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from django.db import transaction
from django.utils import timezone

from controlplane.audit.services import lock_chain, record
from controlplane.errors import Conflict, Invalid, NotFound, Stale
from controlplane.policies import revisions
from controlplane.policies.models import PolicyRevision, Rollout
from controlplane.policies.rows import PolicyRow, checked_values, find_row, new_row, tenant_of, values_of
from controlplane.policies.services import put_in_force
from controlplane.rollouts.guard import Arm, Limits, Verdict
from controlplane.saving import expect_revision, save_checked
from controlplane.snapshots.selectors import rollout as routers_seen
from router.core.variants import place

State = Rollout.State
SYSTEM = "system:rollouts"
STAGES_DEFAULT = (0.1, 0.5, 1.0)
STAGES_MAX = 20
STAGE_S_DEFAULT = 300
STAGE_S_MAX = 7 * 86_400


def start_rollout(
    *,
    actor: str,
    kind: str,
    scope: str,
    values: Mapping[str, Any],
    stages: Sequence[float] = STAGES_DEFAULT,
    stage_s: int = STAGE_S_DEFAULT,
    guards: Mapping[str, Any] | None = None,
    if_revision: int | None = None,
    reason: str = "",
    request_id: str = "",
) -> Rollout:
    """Raises Invalid naming the field, NotFound for the scope, Stale, or Conflict: one runs, or an override holds."""
    checked = checked_values(kind, scope, values)
    _check_stages(stages, stage_s)
    limits = limits_from(guards or {})
    with transaction.atomic():
        lock_chain()
        row = find_row(kind, scope)
        _check_scope(row, kind, scope, if_revision, checked)
        candidate = revisions.append(
            kind=kind, scope=scope, values=checked, origin=PolicyRevision.Origin.CANDIDATE, author=actor, reason=reason
        )
        now = timezone.now()
        rollout = Rollout(
            kind=kind, scope=scope, tenant=tenant_of(scope), candidate=candidate.number, values=checked,
            stages=[float(share) for share in stages], stage_s=stage_s, guards=asdict(limits), author=actor[:200],
            reason=reason[:500], started_at=now, stage_at=now,
        )  # fmt: skip
        save_checked(rollout)
        rollout.share = share_for(rollout, fresh_routers())
        save_checked(rollout)
        _record(rollout, actor=actor, verb="start", before=None, reason=reason, request_id=request_id)
    return rollout


def advance_rollout(
    rollout_id: int,
    *,
    actor: str,
    if_revision: int | None = None,
    reason: str = "",
    request_id: str = "",
) -> Rollout:
    """The next stage, whatever the guard says; after the last one the candidate is in force everywhere."""
    with transaction.atomic():
        lock_chain()
        rollout = _running(rollout_id, if_revision)
        before = _facts(rollout)
        rollout.revision += 1
        if rollout.stage + 1 < len(rollout.stages):
            rollout.stage += 1
            rollout.stage_at = timezone.now()
            rollout.share = max(rollout.share, share_for(rollout, fresh_routers()))
            rollout.verdict = {}
            save_checked(rollout)
            _record(rollout, actor=actor, verb="advance", before=before, reason=reason, request_id=request_id)
        else:
            _end(rollout, State.COMPLETED, actor=actor, outcome="It reached all routers.")
            put_in_force(
                rollout.kind, rollout.scope, rollout.values, row=find_row(rollout.kind, rollout.scope),
                origin=PolicyRevision.Origin.ROLLOUT, verb="set", actor=actor,
                reason=f"Roll-out {rollout.pk} of {rollout.author}: {rollout.reason}"[:500],
                request_id=request_id, repeats=rollout.candidate,
            )  # fmt: skip
            _record(rollout, actor=actor, verb="complete", before=before, reason=reason, request_id=request_id)
    return rollout


def roll_back(
    rollout_id: int,
    *,
    actor: str,
    reason: str,
    if_revision: int | None = None,
    request_id: str = "",
) -> Rollout:
    """End it on all routers; what stood before is in force, as it was."""
    with transaction.atomic():
        lock_chain()
        rollout = _running(rollout_id, if_revision)
        before = _facts(rollout)
        rollout.revision += 1
        _end(rollout, State.ROLLED_BACK, actor=actor, outcome=reason)
        _record(rollout, actor=actor, verb="rollback", before=before, reason=reason, request_id=request_id)
    return rollout


def note_verdict(rollout: Rollout, verdict: Verdict, candidate: Arm, others: Arm) -> None:
    """Keep the guard's word for the page; figures, so no audit entry."""
    rollout.verdict = {
        "state": verdict.state,
        "sentence": verdict.sentence,
        "breached": list(verdict.breached),
        "candidate": figures_of(candidate),
        "others": figures_of(others),
    }
    Rollout.objects.filter(pk=rollout.pk, state=State.RUNNING).update(verdict=rollout.verdict)


def figures_of(arm: Arm) -> dict[str, Any]:
    return {
        "requests": arm.requests,
        "error_share": arm.error_share,
        "hit_share": arm.hit_share,
        "ttft_p95_ms": arm.ttft_p95_ms,
    }


def fresh_routers() -> list[str]:
    return [seen.router for seen in routers_seen().routers if seen.state == "fresh"]


def share_for(rollout: Rollout, routers: Iterable[str]) -> float:
    """The share that gives the stage's part of the routers that are there, at least one; 1 for the last stage."""
    wanted = rollout.share_wanted
    places = sorted(place(rollout.variant_id, router) for router in routers)
    if wanted >= 1 or not places:
        return wanted
    count = max(1, int(wanted * len(places)))
    above = places[count] if count < len(places) else 1.0
    return (places[count - 1] + above) / 2


def limits_from(guards: Mapping[str, Any]) -> Limits:
    """Raises Invalid naming the field."""
    known = {field.name: field.default for field in fields(Limits)}
    for name, value in guards.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name not in known:
            raise Invalid.field(f"guards.{name}", f"There is no guard {name}; there are: {', '.join(known)}.")
        if not number or not 0 <= value <= 1_000_000 or (name == "requests_min" and value != int(value)):
            raise Invalid.field(f"guards.{name}", "A guard is a number from 0 to 1,000,000.")
    if guards.get("ttft_p95_ratio_max", 1) < 1:
        raise Invalid.field("guards.ttft_p95_ratio_max", "The ratio is at least 1.")
    return Limits(**guards)


def _check_stages(stages: Sequence[float], stage_s: int) -> None:
    rises = all(one < other for one, other in zip(stages, list(stages)[1:], strict=False))
    if not 1 <= len(stages) <= STAGES_MAX or not rises or stages[0] <= 0 or stages[-1] != 1:
        raise Invalid.field("stages", f"Stages are 1–{STAGES_MAX} rising shares of the routers, the last one 1.")
    if not 1 <= stage_s <= STAGE_S_MAX:
        raise Invalid.field("stage_s", f"A stage takes 1–{STAGE_S_MAX} seconds.")


def _check_scope(row: PolicyRow | None, kind: str, scope: str, if_revision: int | None, values: dict[str, Any]) -> None:
    current = row.revision if row else 0
    if if_revision is not None and if_revision != current:
        raise Stale(seen=if_revision, current=current)
    if row is None:
        new_row(kind, scope)  # raises when there is no such scope
    elif row.expires_at is not None:
        raise Conflict("An override of this scope is in force: clear it, or wait for its end.")
    elif values_of(row) == values:
        raise Invalid("These values are in force already.")
    if Rollout.objects.filter(kind=kind, scope=scope, state=State.RUNNING).exists():
        raise Conflict("A roll-out of this policy is under way: finish it or roll it back first.")


def _running(rollout_id: int, if_revision: int | None) -> Rollout:
    row = Rollout.objects.select_for_update().filter(pk=rollout_id).first()
    if row is None:
        raise NotFound("There is no such roll-out.")
    expect_revision(row, if_revision)
    if row.state != State.RUNNING:
        raise Conflict(f"The roll-out is {row.state.replace('_', ' ')}.")
    return row


def _end(rollout: Rollout, state: State, *, actor: str, outcome: str) -> None:
    rollout.state = state
    rollout.ended_at = timezone.now()
    rollout.ended_by = actor[:200]
    rollout.outcome = outcome[:500]
    save_checked(rollout)


def _facts(rollout: Rollout) -> dict[str, object]:
    return {
        "kind": rollout.kind,
        "scope": rollout.scope,
        "candidate": rollout.candidate,
        "values": rollout.values,
        "stage": rollout.stage,
        "share": round(rollout.share, 6),
        "state": str(rollout.state),
    }


def _record(
    rollout: Rollout,
    *,
    actor: str,
    verb: str,
    before: dict[str, object] | None,
    reason: str,
    request_id: str,
) -> None:
    record(
        actor=actor,
        action=f"rollout.{verb}",
        object_type="rollout",
        object_id=str(rollout.pk),
        before=before,
        after=_facts(rollout),
        affects_routing=True,
        reason=reason,
        request_id=request_id,
    )
