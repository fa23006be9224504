"""What a worker takes along when it leaves: prefixes that live nowhere else, and how much slower whose requests become.

Of the last WINDOW. A hot prefix is at home where most of its requests went; it is *only* here when OTHERS_SHARE_MAX of
them or less went elsewhere. Then another worker computes it again, once, at

    shared prefill = the greater of the prefix's own tokens and the mean hit tokens of its namespace's requests here
    recompute      = Σ shared prefill of the prefixes that are only here ÷ prefill rate of the others

Until that is done, a tenant's requests that went here wait longer by their mean hit tokens ÷ that rate. It is done when
each such prefix was asked for once more: after the longest mean gap between requests of one, plus the recompute. What
is less than hot is not followed, so these are lower bounds where many prefixes are rarely asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Sum

from controlplane.telemetry.merge import HEAT, Values, merge_into
from controlplane.telemetry.models import PrefixHeatRollup, RequestRollup
from controlplane.telemetry.rollup_rows import segments_q
from controlplane.telemetry.windows import Scope, aligned_pair, cover

WINDOW = timedelta(minutes=15)
OTHERS_SHARE_MAX = 0.1
TENANTS_SHOWN = 20
PREFIXES_MAX = 5_000
"""Of the hottest in a pool."""


@dataclass(frozen=True, slots=True)
class Homed:
    """A hot prefix that is at home on the worker."""

    prefix: str
    namespace: str
    requests: int
    here_share: float
    shared_tokens: float
    """Prefill that its requests share."""
    only_here: bool


@dataclass(frozen=True, slots=True)
class TenantCost:
    tenant: str
    requests_share: float
    """Of the tenant's requests in the pool that went to the worker, 0…1."""
    slower_ms: float | None
    """Of such a request until its prefix is cached elsewhere; None = no rate or no hits are known."""
    lasts_s: float | None
    """None = none of its hot prefixes is only here: each is warm elsewhere already."""


@dataclass(frozen=True, slots=True)
class Leaving:
    homed: list[Homed]
    """Most shared prefill first."""
    recompute_tokens: float
    recompute_s: float | None
    tenants: list[TenantCost]
    """Who loses most first."""

    @property
    def only_here(self) -> list[Homed]:
        return [each for each in self.homed if each.only_here]


@dataclass(frozen=True, slots=True)
class Value:
    """What a worker is worth, for a ranking."""

    homed: int
    only_here: int
    """Hot prefixes."""
    recompute_tokens: float
    saved_ms: float
    """Prefill that its cache spared in the window."""
    requests: int


@dataclass(frozen=True, slots=True)
class _Use:
    """Of one namespace (or tenant) on one worker."""

    requests: int
    hit_tokens: int
    hit_known: int
    saved_ms: float

    @property
    def mean_hit_tokens(self) -> float:
        return self.hit_tokens / self.hit_known if self.hit_known else 0.0


_NOTHING = _Use(0, 0, 0, 0.0)
_SUMS = {name: Sum(name) for name in ("requests", "hit_tokens", "hit_known", "saved_prefill_ms")}


def leaving(worker: str, *, rate: float | None, now: datetime) -> Leaving:
    """`rate`: prefill tokens/s of the workers that would take over. Three queries."""
    pool = worker.partition("/")[0]
    rows = _requests(now, worker=worker).values("tenant", "namespace").annotate(**_SUMS)
    uses = {(row["tenant"], row["namespace"]): _use(row) for row in rows if row["tenant"]}
    by_namespace = {namespace: use for (_, namespace), use in uses.items()}
    homed = [
        _homed(key, values, worker, by_namespace) for key, values in _heat(pool, now).items() if _home(values) == worker
    ]
    tokens = sum(each.shared_tokens for each in homed if each.only_here)
    return Leaving(
        homed=sorted(homed, key=lambda each: (not each.only_here, -each.shared_tokens)),
        recompute_tokens=tokens,
        recompute_s=tokens / rate if rate else None,
        tenants=_tenants(pool, uses, homed, rate, now),
    )


def values_of_workers(pool: str, *, now: datetime) -> dict[str, Value]:
    """By worker; one without traffic is left out. Two queries."""
    rows = _requests(now, pool=pool).values("worker", "namespace").annotate(**_SUMS)
    uses: dict[str, dict[str, _Use]] = {}
    for row in rows:
        if row["worker"]:
            uses.setdefault(row["worker"], {})[row["namespace"]] = _use(row)
    homes: dict[str, list[Homed]] = {}
    for key, values in _heat(pool, now).items():
        worker = _home(values)
        homes.setdefault(worker, []).append(_homed(key, values, worker, uses.get(worker, {})))
    return {worker: _value(uses.get(worker, {}), homes.get(worker, [])) for worker in uses.keys() | homes.keys()}


def _value(uses: Mapping[str, _Use], homed: Sequence[Homed]) -> Value:
    only = [each for each in homed if each.only_here]
    return Value(
        homed=len(homed),
        only_here=len(only),
        recompute_tokens=sum(each.shared_tokens for each in only),
        saved_ms=sum(use.saved_ms for use in uses.values()),
        requests=sum(use.requests for use in uses.values()),
    )


def _requests(now: datetime, **dims: Any) -> Any:
    """Any: lookups by name; a queryset of dicts, which the caller groups."""
    return RequestRollup.objects.filter(_window_q(now), **dims).order_by()


def _heat(pool: str, now: datetime) -> dict[tuple[str, str], Values]:
    """(namespace, prefix) → sums over the window, of prefixes that anybody asked for."""
    rows = PrefixHeatRollup.objects.filter(_window_q(now), pool=pool).order_by("-requests")
    totals: dict[tuple[str, str], Values] = {}
    for row in rows.values("namespace", "prefix", "tokens", "requests", "by_worker")[:PREFIXES_MAX]:
        merge_into(HEAT, totals.setdefault((row["namespace"], row["prefix"]), {}), row)
    return {key: values for key, values in totals.items() if values.get("by_worker") and values["requests"]}


def _window_q(now: datetime) -> Any:
    span, _ = aligned_pair(Scope(from_=now - WINDOW, to=now), now=now)
    return segments_q(cover(span, now=now))


def _use(row: Mapping[str, Any]) -> _Use:
    return _Use(row["requests"], row["hit_tokens"], row["hit_known"], row["saved_prefill_ms"])


def _home(values: Values) -> str:
    by_worker: dict[str, int] = values["by_worker"]
    return max(by_worker, key=lambda worker: (by_worker[worker], worker))


def _homed(key: tuple[str, str], values: Values, worker: str, uses: Mapping[str, _Use]) -> Homed:
    namespace, prefix = key
    share = values["by_worker"][worker] / sum(values["by_worker"].values())
    shared = max(float(values["tokens"]), uses.get(namespace, _NOTHING).mean_hit_tokens)
    return Homed(prefix, namespace, values["requests"], share, shared, only_here=share >= 1 - OTHERS_SHARE_MAX)


def _tenants(
    pool: str, uses: Mapping[tuple[str, str], _Use], homed: Sequence[Homed], rate: float | None, now: datetime
) -> list[TenantCost]:
    here: dict[str, _Use] = {}
    for (tenant, _), use in uses.items():
        here[tenant] = _sum([here.get(tenant, _NOTHING), use])
    worst = sorted(here, key=lambda tenant: (-here[tenant].hit_tokens, tenant))[:TENANTS_SHOWN]
    rows = _requests(now, pool=pool, tenant__in=worst).values("tenant").annotate(total=Sum("requests"))
    totals = {row["tenant"]: row["total"] for row in rows}
    return [_tenant_cost(tenant, here[tenant], totals.get(tenant, 0), homed, rate) for tenant in worst]


def _sum(uses: Iterable[_Use]) -> _Use:
    listed = list(uses)
    return _Use(
        sum(use.requests for use in listed),
        sum(use.hit_tokens for use in listed),
        sum(use.hit_known for use in listed),
        sum(use.saved_ms for use in listed),
    )


def _tenant_cost(tenant: str, here: _Use, total: int, homed: Sequence[Homed], rate: float | None) -> TenantCost:
    own = [each for each in homed if each.only_here and each.namespace.partition("/")[0] == tenant]
    gap_s = max((WINDOW.total_seconds() / each.requests for each in own), default=0.0)
    recompute = sum(each.shared_tokens for each in own)
    return TenantCost(
        tenant=tenant,
        requests_share=here.requests / total if total else 0.0,
        slower_ms=here.mean_hit_tokens / rate * 1000 if rate and here.hit_known else None,
        lasts_s=gap_s + recompute / rate if own and rate else None,
    )
