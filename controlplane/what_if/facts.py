"""What a question takes for granted: the pool as it stands at the moment somebody asks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from django.db.models import QuerySet, Sum

from controlplane.errors import Conflict
from controlplane.fleet.models import Worker, WorkerPool
from controlplane.namespaces.models import CacheNamespace
from controlplane.policies.effective import effective_policy
from controlplane.telemetry.calibration import learnt_rates
from controlplane.telemetry.models import RequestRollup
from controlplane.telemetry.rollup_rows import segments_q
from controlplane.telemetry.windows import Scope, cover
from controlplane.what_if.scenarios import RULE_OF_A_POOL, Standing

GOOD_S = 2.0
"""A first token within it is good where no namespace has an objective."""


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """None = unknown: the simulator then takes its own machine's."""

    standing: Standing
    kv_capacity_tokens: int | None
    """Of one worker; the least of the pool's."""
    prefill_tokens_per_s: float | None
    """The median of what routers have learnt of its workers, else as configured."""
    good_s: float


def facts_of(pool: str, *, tenant: str = "", namespace: str = "", now: datetime) -> PoolFacts:
    """Raises NotFound, or Conflict for a pool without a worker that takes requests."""
    values = {each.field: each.value for each in effective_policy(pool=pool, namespace=namespace, now=now).values}
    workers = list(Worker.objects.select_related("pool").filter(pool__slug=pool, state=Worker.State.READY))
    if not workers:
        raise Conflict(f"No worker of {pool} takes requests: there is no fleet to compare with.")
    rule = str(values["routing"])
    return PoolFacts(
        standing=Standing(len(workers), values["low"], values["high"], RULE_OF_A_POOL.get(rule, rule)),
        kv_capacity_tokens=_capacity(workers),
        prefill_tokens_per_s=_learnt(workers, now) or values["prefill_tokens_per_s"],
        good_s=_objective_s(tenant, namespace),
    )


def traffic_share(scope: Scope, *, now: datetime) -> float:
    """Prompt tokens of the scope's tenant ÷ all of its pool in the span. Raises Conflict where nothing was counted."""
    of_all = _tokens(RequestRollup.objects.filter(pool=scope.pool), scope, now)
    own = _tokens(_own(scope), scope, now)
    if not of_all or not own:
        raise Conflict("No request of these was counted in this range.")
    return min(1.0, own / of_all)


def pools_of(tenant: str = "") -> list[str]:
    """Slugs a question can be about: all, or those that serve a model that the tenant's namespaces may use."""
    rows = WorkerPool.objects.order_by("slug")
    if not tenant:
        return list(rows.values_list("slug", flat=True))
    used = RequestRollup.objects.filter(tenant=tenant).exclude(pool="").values("pool")
    return list(rows.filter(slug__in=used).values_list("slug", flat=True))


def _capacity(workers: list[Worker]) -> int | None:
    known = [
        row.facts["kv_blocks"] * (row.facts.get("block_size") or row.pool.block_size)
        for row in workers
        if row.facts.get("kv_blocks")
    ]
    return min(known, default=None)


def _learnt(workers: list[Worker], now: datetime) -> float | None:
    learnt = learnt_rates(now=now)
    rates = [found.tokens_per_s for row in workers if (found := learnt.get(row.worker_id)) and found.samples]
    return median(rates) if rates else None


def _objective_s(tenant: str, namespace: str) -> float:
    """The strictest TTFT objective of the scope's namespaces."""
    rows = CacheNamespace.objects.exclude(ttft_slo_ms=None)
    if tenant:
        rows = rows.filter(tenant__slug=tenant)
    if namespace:
        rows = rows.filter(slug=namespace.partition("/")[2])
    least: float | None = rows.order_by("ttft_slo_ms").values_list("ttft_slo_ms", flat=True).first()
    return GOOD_S if least is None else least / 1000


def _own(scope: Scope) -> QuerySet[RequestRollup]:
    named = {"tenant": scope.tenant, "namespace": scope.namespace, "pool": scope.pool}
    return RequestRollup.objects.filter(**{name: value for name, value in named.items() if value})


def _tokens(rows: QuerySet[RequestRollup], scope: Scope, now: datetime) -> int:
    edge = timedelta(hours=1)
    around = Scope(from_=scope.from_ - edge, to=scope.to + edge)
    sums: dict[str, Any] = rows.filter(segments_q(cover(around, now=now))).aggregate(all=Sum("prompt_tokens"))
    return int(sums["all"] or 0)
