"""What a revocation takes away, before it is done: keys, traffic, running requests, cached blocks, tenants touched.

Unknown stays None: a router that does not say what runs must not read as nothing running.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import QuerySet

from controlplane.fleet.models import PoolModel
from controlplane.fleet.selectors import workers_table
from controlplane.namespaces.models import ApiKey, CacheNamespace
from controlplane.telemetry.models import RequestRollup
from controlplane.telemetry.rollup_rows import request_rows
from controlplane.telemetry.sources import RouterWord, last_words
from controlplane.telemetry.windows import Scope, cover
from controlplane.tenants.models import Status, Tenant
from router.contract.telemetry import NAMES_TOLD_MAX

LOOKED_BACK = timedelta(hours=1)
TENANTS_NAMED_MAX = 12
ROUTER_SILENT_AFTER = timedelta(seconds=15)
"""What a router said of its running requests before that says nothing about this moment."""


@dataclass(frozen=True, slots=True)
class Blast:
    kind: str
    subject: str
    tenant: str
    """Slug; "" for a model."""
    typed: str
    """What must be typed to confirm it."""
    revoked: bool
    """Already, so there is nothing left to do. Of a model always False: its next revision can be revoked too."""
    keys: int
    """Active keys that stop working."""
    namespaces: list[str]
    requests_per_min: float | None
    """Mean of the last hour."""
    running: int | None
    blocks: int | None
    """Cached blocks that nothing will reach."""
    blocks_of: str
    """What `blocks` counts, in words."""
    tenants: list[str]
    """That had traffic there in the last hour, at most TENANTS_NAMED_MAX."""
    serves_when_stale: bool
    """Whether a router that is cut off may go on serving some of it from its last snapshot."""


def blast_of(kind: str, subject: str, *, now: datetime) -> Blast | None:
    """None for what does not exist."""
    return _OF_KIND[kind](subject, now) if kind in _OF_KIND else None


def _key(subject: str, now: datetime) -> Blast | None:
    key = ApiKey.objects.select_related("namespace__tenant").filter(key_id=subject).first()
    if key is None:
        return None
    namespace = key.namespace
    return Blast(
        kind="key",
        subject=subject,
        tenant=namespace.tenant.slug,
        typed=subject,
        revoked=key.status == ApiKey.KeyStatus.REVOKED,
        keys=1,
        namespaces=[namespace.namespace_id],
        requests_per_min=_per_min(Scope(now - LOOKED_BACK, now, namespace=namespace.namespace_id), now),
        running=_running([namespace.namespace_id], now),
        blocks=None,
        blocks_of="none: the namespace keeps its cache for its other keys",
        tenants=[namespace.tenant.slug],
        serves_when_stale=namespace.on_stale != CacheNamespace.OnStale.DENY,
    )


def _namespace(subject: str, now: datetime) -> Blast | None:
    tenant, _, slug = subject.partition("/")
    rows = CacheNamespace.objects.select_related("tenant").filter(tenant__slug=tenant, slug=slug)
    return _of_namespaces("namespace", subject, rows, now) if rows.exists() else None


def _tenant(subject: str, now: datetime) -> Blast | None:
    owner = Tenant.objects.filter(slug=subject).first()
    if owner is None:
        return None
    rows = CacheNamespace.objects.select_related("tenant").filter(tenant=owner)
    return _of_namespaces("tenant", subject, rows, now, revoked=owner.status == Status.REVOKED)


def _of_namespaces(
    kind: str, subject: str, rows: QuerySet[CacheNamespace], now: datetime, *, revoked: bool | None = None
) -> Blast:
    found = list(rows)
    names = [row.namespace_id for row in found]
    tenant = subject.partition("/")[0]
    scope = Scope(now - LOOKED_BACK, now, tenant=tenant, namespace=subject if kind == "namespace" else "")
    return Blast(
        kind=kind,
        subject=subject,
        tenant=tenant,
        typed=subject,
        revoked=all(row.status == Status.REVOKED for row in found) if revoked is None else revoked,
        keys=ApiKey.objects.filter(namespace__in=[row.pk for row in found], status=ApiKey.KeyStatus.ACTIVE).count(),
        namespaces=names,
        requests_per_min=_per_min(scope, now),
        running=_running(names, now),
        blocks=_remembered(tenant, now),
        blocks_of="that routers remember of the tenant" if kind == "tenant" else "that routers remember of its tenant",
        tenants=[tenant],
        serves_when_stale=any(
            row.on_stale != CacheNamespace.OnStale.DENY and row.status != Status.REVOKED for row in found
        ),
    )


def _model(subject: str, now: datetime) -> Blast | None:
    pool, _, name = subject.partition(":")
    if not PoolModel.objects.filter(pool__slug=pool, name=name).exists():
        return None
    scope = Scope(now - LOOKED_BACK, now, pool=pool, model=name)
    resident = [row.resident_blocks for row in workers_table(pool=pool, now=now)]
    known = [blocks for blocks in resident if blocks is not None]
    return Blast(
        kind="model",
        subject=subject,
        tenant="",
        typed=subject,
        revoked=False,
        keys=0,
        namespaces=[],
        requests_per_min=_per_min(scope, now),
        running=None,
        blocks=sum(known) if known else None,
        blocks_of="that the pool's workers hold, of all its models",
        tenants=_tenants(scope, now),
        serves_when_stale=True,
    )


_OF_KIND: dict[str, Callable[[str, datetime], Blast | None]] = {
    "key": _key,
    "namespace": _namespace,
    "tenant": _tenant,
    "model": _model,
}


def _per_min(scope: Scope, now: datetime) -> float | None:
    rows = request_rows(scope, cover(scope, now=now), ("requests",))
    if not rows:
        return None
    return float(sum(values.get("requests", 0) for _, values in rows) / (scope.span_s / 60))


def _tenants(scope: Scope, now: datetime) -> list[str]:
    hour = RequestRollup.objects.filter(
        width_s=60, start__gte=scope.from_, pool=scope.pool, model=scope.model, requests__gt=0
    )
    return list(hour.order_by("tenant").values_list("tenant", flat=True).distinct()[:TENANTS_NAMED_MAX])


def _running(namespaces: Iterable[str], now: datetime) -> int | None:
    """Requests under way at this moment, as the routers last said; None where no router says."""
    words, wanted = _recent_words(now), set(namespaces)
    if not words or any(len(_told(word, "inflight_by_namespace")) >= NAMES_TOLD_MAX for word in words):
        return None
    return sum(
        count for word in words for name, count in _told(word, "inflight_by_namespace").items() if name in wanted
    )


def _remembered(tenant: str, now: datetime) -> int | None:
    """The most that any router remembers: routers remember the same blocks, each for itself."""
    words = _recent_words(now)
    counts = [_told(word, "index_blocks_by_tenant").get(tenant) for word in words]
    known = [count for count in counts if count is not None]
    return max(known) if known else None


def _recent_words(now: datetime) -> list[RouterWord]:
    return [word for word in last_words(now) if now - word.last_at <= ROUTER_SILENT_AFTER]


def _told(word: RouterWord, name: str) -> dict[str, int]:
    return dict(word.state.get(name, {}))
