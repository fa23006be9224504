"""Which of a snapshot's variants hold on this router at this moment, and the snapshot that results.

    share   a variant holds where `place(variant, router)` is below it: a stable draw, so that a share that grows keeps
            the routers it has, and different roll-outs begin on different routers
    until   it ends by the router's own clock, whether or not the control plane is in reach

O(pools + namespaces) for each variant in force, at each snapshot and at each end of one; nothing on a request's path.
"""

from __future__ import annotations

import hashlib
import math

import msgspec

from router.contract.ids import NamespaceId, PoolId
from router.contract.snapshot import NamespacePolicy, NamespaceValues, PolicySnapshot, PoolPolicy, PoolValues, Variant

_PLACE_BYTES = 8


class Settled(msgspec.Struct, frozen=True):
    snapshot: PolicySnapshot
    """Without variants: the values that hold."""
    in_force: tuple[str, ...]
    """Ids of the variants in it."""
    changes_at: float
    """Unix seconds when the next of them ends; infinite when none does."""


def settled(snapshot: PolicySnapshot, *, router: str, now: float) -> Settled:
    """`now` in Unix seconds."""
    chosen = [variant for variant in snapshot.variants if holds(variant, router=router, now=now)]
    if not chosen:
        return Settled(snapshot, (), math.inf)
    pools, namespaces = dict(snapshot.pools), dict(snapshot.namespaces)
    for variant in chosen:
        _put(variant, pools, namespaces)
    ends = [variant.until for variant in chosen if variant.until is not None]
    result = msgspec.structs.replace(snapshot, pools=pools, namespaces=namespaces, variants=())
    return Settled(result, tuple(variant.id for variant in chosen), min(ends, default=math.inf))


def holds(variant: Variant, *, router: str, now: float) -> bool:
    if variant.until is not None and now >= variant.until:
        return False
    return variant.share >= 1.0 or place(variant.id, router) < variant.share


def place(variant: str, router: str) -> float:
    """0 ≤ place < 1, the same in every process."""
    digest = hashlib.blake2b(f"{len(variant)}:{variant}{router}".encode(), digest_size=_PLACE_BYTES).digest()
    return int.from_bytes(digest) / float(1 << 8 * _PLACE_BYTES)


def _put(variant: Variant, pools: dict[PoolId, PoolPolicy], namespaces: dict[NamespaceId, NamespacePolicy]) -> None:
    for pool, pool_values in variant.pools.items():
        if pool in pools:
            pools[pool] = msgspec.structs.replace(pools[pool], **_set(pool_values))
    for namespace, namespace_values in variant.namespaces.items():
        if namespace in namespaces:
            namespaces[namespace] = msgspec.structs.replace(namespaces[namespace], **_set(namespace_values))


def _set(values: PoolValues | NamespaceValues) -> dict[str, object]:
    fields = {name: getattr(values, name) for name in values.__struct_fields__}
    return {name: value for name, value in fields.items() if value is not None}
