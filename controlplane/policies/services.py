"""Changes to watermark policies. A scope is `global`, `pool:<slug>` or `namespace:<tenant>/<slug>`."""

from __future__ import annotations

from django.db import transaction

from controlplane.audit.services import lock_chain, record
from controlplane.errors import Conflict, Invalid, NotFound, Stale
from controlplane.fleet.models import WorkerPool
from controlplane.namespaces.models import CacheNamespace
from controlplane.policies.models import WatermarkPolicy
from controlplane.policies.selectors import find_policy
from controlplane.policies.watermarks import checked_watermark
from controlplane.saving import save_checked

Scope = WatermarkPolicy.Scope


def set_watermark(
    *,
    actor: str,
    scope: str,
    low: float,
    high: float,
    dwell_s: float = 0.0,
    if_revision: int | None = None,
    reason: str = "",
    request_id: str = "",
) -> WatermarkPolicy:
    """Create or change the policy of a scope; the values that it has already change nothing.

    `if_revision` 0 means "there is none yet". Raises Invalid with the fields' errors, NotFound or Stale.
    """
    values = checked_watermark(low=low, high=high, dwell_s=dwell_s)
    with transaction.atomic():
        lock_chain()  # two first settings of one scope must not both insert
        row = find_policy(scope)
        _expect(row, if_revision)
        before = _facts(row) if row else None
        row = row or _policy_of(scope)
        if before and (row.low, row.high, row.dwell_s) == (values.low, values.high, values.dwell_s):
            return row
        row.low, row.high, row.dwell_s = values.low, values.high, values.dwell_s
        row.revision = row.revision + 1 if before else 1
        save_checked(row)
        _record(row, actor=actor, verb="set", before=before, after=_facts(row), reason=reason, request_id=request_id)
    return row


def clear_watermark(
    *, actor: str, scope: str, if_revision: int | None = None, reason: str = "", request_id: str = ""
) -> None:
    """Remove a pool's or namespace's own policy, so that the wider one holds. The global one stays (Conflict)."""
    if scope == Scope.GLOBAL:
        raise Conflict("The global watermark always exists; change it instead.")
    with transaction.atomic():
        lock_chain()
        row = find_policy(scope)
        if row is None:
            raise NotFound(f"There is no watermark policy for {scope!r}.")
        _expect(row, if_revision)
        _record(row, actor=actor, verb="clear", before=_facts(row), after=None, reason=reason, request_id=request_id)
        row.delete()


def ensure_global() -> WatermarkPolicy:
    """The global policy, made with the default values where it is missing. Repeating it changes nothing."""
    return WatermarkPolicy.objects.get_or_create(scope=Scope.GLOBAL)[0]


def _expect(row: WatermarkPolicy | None, if_revision: int | None) -> None:
    current = row.revision if row else 0
    if if_revision is not None and if_revision != current:
        raise Stale(seen=if_revision, current=current)


def _policy_of(scope: str) -> WatermarkPolicy:
    """An unsaved policy for `scope`. Raises NotFound when the pool or namespace does not exist."""
    kind, _, name = scope.partition(":")
    if scope == Scope.GLOBAL:
        return WatermarkPolicy(scope=Scope.GLOBAL)
    if kind == Scope.POOL:
        pool = WorkerPool.objects.filter(slug=name).first()
        if pool is not None:
            return WatermarkPolicy(scope=Scope.POOL, pool=pool)
        raise NotFound(f"There is no pool {name!r}.")
    if kind == Scope.NAMESPACE:
        tenant, _, slug = name.partition("/")
        rows = CacheNamespace.objects.select_related("tenant")
        namespace = rows.filter(tenant__slug=tenant, slug=slug).first()
        if namespace is not None:
            return WatermarkPolicy(scope=Scope.NAMESPACE, namespace=namespace)
        raise NotFound(f"There is no namespace {name!r}.")
    raise Invalid.field("scope", "Scope must be global, pool:<pool> or namespace:<tenant>/<namespace>.")


def _facts(row: WatermarkPolicy) -> dict[str, object]:
    return {"low": row.low, "high": row.high, "dwell_s": row.dwell_s, "revision": row.revision}


def _record(
    row: WatermarkPolicy,
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
        action=f"watermark.{verb}",
        object_type="watermark",
        object_id=row.scope_id,
        before=before,
        after=after,
        affects_routing=True,
        reason=reason,
        request_id=request_id,
    )
