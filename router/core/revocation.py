"""What a revocation takes away: laid over the snapshot that does not hold it yet, and from what runs already.

Everything here is decided by content, so that a revocation heard twice, late or out of order does no harm: a revoked
key, namespace or tenant stays revoked for good, and generations of a model only rise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from router.contract.ids import KeyId, NamespaceId, PoolId, TenantId
from router.contract.revocation import Revocation
from router.contract.snapshot import KeyGrant, ModelGeneration, NamespacePolicy, PolicySnapshot, PoolPolicy, TenantGrant
from router.core.model import Grant, InvalidKey, NamespaceUnready, RoutingError

_INVALID_KEY: Final = "Incorrect API key provided."
"""The words for any key that is not valid (S12)."""
_WITHDRAWN: Final = "The model was replaced while it answered. Please retry."


def without(snapshot: PolicySnapshot, revocations: Iterable[Revocation]) -> PolicySnapshot:
    """The snapshot as it will be once it holds the revocations. O(keys + namespaces) when there are any."""
    pending = [revocation for revocation in revocations if not in_force(revocation, snapshot)]
    if not pending:
        return snapshot
    keys, namespaces = dict(snapshot.keys), dict(snapshot.namespaces)
    tenants, pools = dict(snapshot.tenants), dict(snapshot.pools)
    for revocation in pending:
        if revocation.kind == "key":
            key = KeyId(revocation.subject)
            keys[key] = msgspec.structs.replace(keys[key], status="revoked")
        elif revocation.kind == "namespace":
            namespace = NamespaceId(revocation.subject)
            namespaces[namespace] = msgspec.structs.replace(namespaces[namespace], status="revoked")
        elif revocation.kind == "tenant":
            tenant = TenantId(revocation.subject)
            tenants[tenant] = msgspec.structs.replace(tenants[tenant], status="revoked")
        else:
            pool, model = _pool_and_model(revocation)
            pools[pool] = _without_revision(pools[pool], model, revocation.retired)
    return msgspec.structs.replace(snapshot, keys=keys, namespaces=namespaces, tenants=tenants, pools=pools)


def in_force(revocation: Revocation, snapshot: PolicySnapshot) -> bool:
    """Whether the snapshot grants nothing of what the revocation takes away; what it lacks it does not grant."""
    if revocation.kind == "model":
        pool, model = _pool_and_model(revocation)
        policy = snapshot.pools.get(pool)
        if policy is None or model not in policy.models:
            return True
        return generation_number(policy, model) > revocation.retired or _is_withdrawn(policy, model)
    grant = _grant_of(revocation, snapshot)
    return grant is None or grant.status == "revoked"


def epoch_reached(base: int, epochs: Collection[int]) -> int:
    """The last epoch without a gap: `base` is a snapshot's, `epochs` those of revocations heard on their own."""
    while base + 1 in epochs:
        base += 1
    return base


def generation_number(policy: PoolPolicy, model: str) -> int:
    generation = policy.model_generations.get(model)
    return 1 if generation is None else generation.number


def refusal_of(grant: Grant, snapshot: PolicySnapshot, *, now: float) -> RoutingError | None:
    """Why a request that was let in with `grant` may not go on under `snapshot`; None when it may. `now`: Unix seconds.

    Its key, namespace or tenant is gone, not active or expired, or the revision of its model was revoked. A new
    generation of the namespace's salt ends no request: what runs under the old salt only fills a cache that nobody can
    reach any more. A model that moved to another pool, or from the namespace's list, ends none either.
    """
    if not _still_granted(grant, snapshot, now):
        return InvalidKey(_INVALID_KEY)
    pool = snapshot.pools.get(grant.pool)
    generation = None if pool is None else pool.model_generations.get(grant.model)
    if generation is not None and (not generation.nonce or generation.nonce != grant.model_nonce):
        return NamespaceUnready(_WITHDRAWN)
    return None


def _still_granted(grant: Grant, snapshot: PolicySnapshot, now: float) -> bool:
    key = snapshot.keys.get(grant.key)
    namespace = snapshot.namespaces.get(grant.namespace)
    tenant = snapshot.tenants.get(grant.tenant)
    if key is None or namespace is None or tenant is None:
        return False
    if key.expires_at is not None and key.expires_at <= now:
        return False
    return key.status == namespace.status == tenant.status == "active"


def _grant_of(revocation: Revocation, snapshot: PolicySnapshot) -> KeyGrant | NamespacePolicy | TenantGrant | None:
    if revocation.kind == "key":
        return snapshot.keys.get(KeyId(revocation.subject))
    if revocation.kind == "namespace":
        return snapshot.namespaces.get(NamespaceId(revocation.subject))
    return snapshot.tenants.get(TenantId(revocation.subject))


def _without_revision(policy: PoolPolicy, model: str, retired: int) -> PoolPolicy:
    """Until the snapshot tells the next revision's nonce nothing can be salted for the model."""
    withdrawn = ModelGeneration(number=retired + 1, nonce="")
    return msgspec.structs.replace(policy, model_generations={**policy.model_generations, model: withdrawn})


def _is_withdrawn(policy: PoolPolicy, model: str) -> bool:
    generation = policy.model_generations.get(model)
    return generation is not None and not generation.nonce


def _pool_and_model(revocation: Revocation) -> tuple[PoolId, str]:
    pool, _, model = revocation.subject.partition(":")
    return PoolId(pool), model
