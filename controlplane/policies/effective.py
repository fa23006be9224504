"""What holds for a (tenant, namespace, pool), value by value: the scopes that were asked, and the one that answered.

Watermarks: an override or policy of the namespace, then of the pool, then the global one, then the router's default.
Routing: a policy of the pool or namespace, then its own settings. A roll-out under way stands beside the value that it
would replace, with the share of routers that have it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.utils import timezone

from controlplane.errors import NotFound
from controlplane.fleet.models import WorkerPool
from controlplane.namespaces.models import CacheNamespace
from controlplane.policies.models import PolicyRevision, Rollout
from controlplane.policies.routing_values import FIELDS
from controlplane.policies.rows import PolicyRow, stored, values_of
from controlplane.policies.variants import kind_of
from router.contract.snapshot import Watermark

Kind = PolicyRevision.Kind
_MARKS = ("low", "high", "dwell_s")
SETTINGS_ONLY = {
    "pool": (
        "block_size",
        "prefill_tokens_per_s",
        "tokenizer",
        "kv_bytes_per_token",
        "transfer_gib_per_s",
        "transfer",
    ),
    "namespace": ("on_stale", "unknown_fields"),
}
"""Settings that no policy replaces: shown beside the others, so that the page is whole."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A roll-out's value, on its way to `share` of the routers in the present stage."""

    rollout: int
    value: Any
    share: float


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    field: str
    value: Any
    source: str
    """`namespace:<id>`, `pool:<slug>`, `global` (policies), `settings of …`, or `default`."""
    revision: int | None = None
    """Of the policy that answered; null for settings and defaults."""
    expires_at: datetime | None = None
    """When an override ends."""
    asked: tuple[str, ...] = ()
    """Narrower sources that had nothing to say."""
    candidate: Candidate | None = None


@dataclass(frozen=True, slots=True)
class EffectivePolicy:
    pool: str
    namespace: str
    """"" when asked for a pool alone."""
    tenant: str
    values: list[EffectiveValue] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Stored:
    rows: dict[tuple[str, str], PolicyRow]
    rollouts: dict[tuple[str, str], Rollout]


def effective_policy(*, pool: str, namespace: str = "", now: datetime | None = None) -> EffectivePolicy:
    """Five queries. Raises NotFound for a pool or namespace that does not exist."""
    pool_row = WorkerPool.objects.filter(slug=pool).first()
    if pool_row is None:
        raise NotFound(f"There is no pool {pool!r}.")
    namespace_row = _namespace(namespace) if namespace else None
    found = _read(now or timezone.now())
    values = [_watermark_value(found, name, pool, namespace) for name in _MARKS]
    values += _settings(found, "pool", pool, pool_row)
    if namespace_row is not None:
        values += _settings(found, "namespace", namespace, namespace_row)
    return EffectivePolicy(
        pool=pool,
        namespace=namespace,
        tenant=namespace.partition("/")[0],
        values=values,
    )


def _namespace(namespace: str) -> CacheNamespace:
    tenant, _, slug = namespace.partition("/")
    row = CacheNamespace.objects.select_related("tenant").filter(tenant__slug=tenant, slug=slug).first()
    if row is None:
        raise NotFound(f"There is no namespace {namespace!r}.")
    return row


def _read(now: datetime) -> _Stored:
    """Rows in force at `now`: an override that has ended counts as the tick will leave it."""
    rows: dict[tuple[str, str], PolicyRow] = {}
    for kind in Kind.values:
        for row in stored(kind):
            if row.expires_at is None or row.expires_at > now:
                rows[(kind_of(row), row.scope_id)] = row
    running = Rollout.objects.filter(state=Rollout.State.RUNNING)
    return _Stored(rows, {(row.kind, row.scope): row for row in running})


def _watermark_value(found: _Stored, name: str, pool: str, namespace: str) -> EffectiveValue:
    scopes = [f"namespace:{namespace}"] if namespace else []
    scopes += [f"pool:{pool}", "global"]
    return _answered(found, Kind.WATERMARK, name, scopes, settings=("default", getattr(Watermark(), name)))


def _settings(found: _Stored, kind: str, name: str, row: WorkerPool | CacheNamespace) -> list[EffectiveValue]:
    scope, source = f"{kind}:{name}", f"settings of {kind} {name}"
    replaceable = [
        _answered(found, Kind.ROUTING, field, [scope], settings=(source, getattr(row, field))) for field in FIELDS[kind]
    ]
    return replaceable + [EffectiveValue(field, getattr(row, field), source) for field in SETTINGS_ONLY[kind]]


def _answered(found: _Stored, kind: str, name: str, scopes: list[str], *, settings: tuple[str, Any]) -> EffectiveValue:
    """The first scope that sets the field, else the settings; a candidate counts only where it would answer."""
    candidate: Candidate | None = None
    for index, scope in enumerate(scopes):
        rollout = found.rollouts.get((kind, scope))
        if candidate is None and rollout is not None and name in rollout.values:
            candidate = Candidate(rollout.pk, rollout.values[name], rollout.share_wanted)
        row = found.rows.get((kind, scope))
        if row is not None and name in values_of(row):
            return EffectiveValue(
                name, values_of(row)[name], scope, row.revision, row.expires_at, tuple(scopes[:index]), candidate
            )
    return EffectiveValue(name, settings[1], settings[0], asked=tuple(scopes), candidate=candidate)
