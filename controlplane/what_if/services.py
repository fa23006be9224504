"""Questions: asked and cancelled. Each is one transaction with one audit entry, and checks what the asker holds."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from controlplane.audit.services import lock_chain, record
from controlplane.errors import Conflict, Forbidden, Invalid, NotFound
from controlplane.saving import save_checked
from controlplane.telemetry.recorded import recorded_extent
from controlplane.telemetry.windows import Scope
from controlplane.tenants.roles import Access, Capability
from controlplane.what_if.facts import PoolFacts, facts_of, traffic_share
from controlplane.what_if.models import WhatIf
from controlplane.what_if.scenarios import OF_A_TENANT, Changes, asked_of

State = WhatIf.State
WAITING_MAX = 20
"""Not yet ended: one is simulated at a time."""
WAITING_OF_ONE_MAX = 4
"""Of them, one asker's: nobody fills the queue alone."""
SEEDS_MAX = 5
SEEDS_DEFAULT = 3
SPAN_MIN = timedelta(minutes=1)
SPAN_MAX = timedelta(days=2)
REQUESTS_MIN = 20
"""Recorded ones: fewer tell nothing of a fleet."""
GPUS_MAX = 64
PRICE_MAX = 10_000.0
GOOD_S_MAX = 600.0


def may_ask(access: Access, tenant: str) -> bool:
    """A tenant's own traffic takes the capability there; the whole pool's also takes seeing the fleet."""
    if tenant:
        return access.may(Capability.WHAT_IFS_ASK, tenant)
    return access.may(Capability.WHAT_IFS_ASK) and access.may(Capability.FLEET_VIEW)


def ask(
    *,
    actor: str,
    access: Access,
    pool: str,
    from_at: datetime,
    to_at: datetime,
    scenarios: Sequence[Changes],
    tenant: str = "",
    namespace: str = "",
    seeds: int = SEEDS_DEFAULT,
    good_s: float | None = None,
    gpu_price_per_h: float | None = None,
    gpu_currency: str = "EUR",
    gpus_per_worker: int = 1,
    request_id: str = "",
) -> WhatIf:
    """`scenarios`: see `scenarios.py`. Raises Forbidden, NotFound, Invalid naming the field, or Conflict where nothing
    was recorded or too many wait."""
    tenant = tenant or namespace.partition("/")[0]
    if not may_ask(access, tenant):
        raise Forbidden("Asking what if needs the operator role, or the administrator's of the tenant.")
    now = timezone.now()
    scope = _scope(pool, tenant, namespace, from_at, to_at, now)
    _check_figures(seeds, good_s, gpu_price_per_h, gpus_per_worker)
    sees_fleet = access.may(Capability.FLEET_VIEW)
    if not sees_fleet:
        _refuse_the_fleets(scenarios)
        # A pool that the tenant never used is as an absent one (S12).
        _refuse_too_few(scope)
    facts = facts_of(pool, tenant=tenant, namespace=namespace, now=now)
    if sees_fleet:
        _refuse_too_few(scope)
    question = _question(facts, scenarios, scope, now) | {
        "good_s": good_s or facts.good_s,
        "gpu_price_per_h": gpu_price_per_h,
        "gpus_per_worker": gpus_per_worker,
        "seeds": list(range(1, seeds + 1)),
    }
    row = WhatIf(
        asked_by=actor, pool=pool, tenant=tenant, namespace=namespace, from_at=from_at, to_at=to_at, question=question,
        gpu_currency=_currency(gpu_currency), created_at=now,
    )  # fmt: skip
    with transaction.atomic():
        lock_chain()  # one at a time: two that count together would both find room
        _refuse_too_many(actor)
        save_checked(row)
        _record(row, actor=actor, verb="ask", request_id=request_id)
    return row


def cancel(what_if: int, *, actor: str, access: Access, request_id: str = "") -> WhatIf:
    """Ends one that waits or is simulated, within seconds. Raises NotFound, Forbidden, or Conflict."""
    with transaction.atomic():
        row = WhatIf.objects.select_for_update().filter(pk=what_if).first()
        if row is None:
            raise NotFound("There is no such question.")
        if not may_ask(access, row.tenant):
            raise Forbidden("Cancelling takes what asking takes.")
        if not row.under_way:
            raise Conflict("It has ended already.")
        row.state, row.lease_until, row.doing, row.finished_at = State.CANCELLED, None, "", timezone.now()
        save_checked(row)
        _record(row, actor=actor, verb="cancel", request_id=request_id)
    return row


def _scope(pool: str, tenant: str, namespace: str, from_at: datetime, to_at: datetime, now: datetime) -> Scope:
    if namespace and namespace.partition("/")[0] != tenant:
        raise Invalid.field("namespace", "It is none of this tenant's.")
    if to_at > now:
        raise Invalid.field("to_at", "The range lies in the past.")
    if not SPAN_MIN <= to_at - from_at <= SPAN_MAX:
        raise Invalid.field("from_at", "A range has from one minute to two days.")
    return Scope(from_=from_at, to=to_at, tenant=tenant, namespace=namespace, pool=pool)


def _refuse_too_few(scope: Scope) -> None:
    if recorded_extent(scope).requests < REQUESTS_MIN:
        raise Conflict(f"Fewer than {REQUESTS_MIN} requests of these were recorded in this range.")


def _check_figures(seeds: int, good_s: float | None, price: float | None, gpus: int) -> None:
    if not 1 <= seeds <= SEEDS_MAX:
        raise Invalid.field("seeds", f"From 1 to {SEEDS_MAX} runs of each scenario.")
    if good_s is not None and not 0 < good_s <= GOOD_S_MAX:
        raise Invalid.field("good_s", f"More than 0, at most {GOOD_S_MAX:g} s.")
    if price is not None and not 0 <= price <= PRICE_MAX:
        raise Invalid.field("gpu_price_per_h", f"From 0 to {PRICE_MAX:,.0f}.")
    if not 1 <= gpus <= GPUS_MAX:
        raise Invalid.field("gpus_per_worker", f"From 1 to {GPUS_MAX}.")


def _currency(text: str) -> str:
    if not (text.isascii() and text.isalpha() and len(text) == 3):
        raise Invalid.field("gpu_currency", "Use three letters, such as EUR or USD.")
    return text.upper()


def _refuse_the_fleets(scenarios: Sequence[Changes]) -> None:
    foreign = {lever for changes in scenarios for lever in changes if changes[lever]} - OF_A_TENANT - {"name"}
    if foreign:
        raise Invalid.field("scenarios", "Workers, memory, watermarks and routing are the fleet's: ask an operator.")


def _question(facts: PoolFacts, scenarios: Sequence[Changes], scope: Scope, now: datetime) -> dict[str, Any]:
    """A tenant's traffic alone would find the whole memory its own: it is given its share of it."""
    capacity = facts.kv_capacity_tokens
    if scope.tenant and capacity:
        capacity = max(1, round(capacity * traffic_share(scope, now=now)))
    standing = facts.standing
    return {
        "workers": standing.workers,
        "kv_capacity_tokens": capacity,
        "prefill_tokens_per_s": facts.prefill_tokens_per_s,
        "watermark": {"low": standing.low, "high": standing.high},
        "policy": standing.policy,
        "scenarios": asked_of(scenarios, standing),
    }


def _refuse_too_many(actor: str) -> None:
    waiting = WhatIf.objects.filter(state__in=(State.WAITING, State.RUNNING))
    if waiting.count() >= WAITING_MAX:
        raise Conflict(f"{WAITING_MAX} questions wait already.")
    if waiting.filter(asked_by=actor).count() >= WAITING_OF_ONE_MAX:
        raise Conflict(f"{WAITING_OF_ONE_MAX} of your questions wait already: cancel one, or let them be answered.")


def _record(row: WhatIf, *, actor: str, verb: str, request_id: str) -> None:
    facts: dict[str, object] = {
        "pool": row.pool, "tenant": row.tenant, "namespace": row.namespace, "from": row.from_at.isoformat(),
        "to": row.to_at.isoformat(), "scenarios": [scenario["name"] for scenario in row.question["scenarios"]],
        "state": row.state,
    }  # fmt: skip
    record(
        actor=actor, action=f"what_if.{verb}", object_type="what_if",
        object_id=f"{row.tenant}/{row.pk}" if row.tenant else str(row.pk),
        before=None if verb == "ask" else {**facts, "state": ""}, after=facts, affects_routing=False,
        request_id=request_id,
    )  # fmt: skip
