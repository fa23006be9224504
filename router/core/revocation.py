"""Whether a request that was let in may go on under a later snapshot (Revocation: running streams are cancelled)."""

from __future__ import annotations

from router.contract.snapshot import PolicySnapshot
from router.core.model import Grant


def still_granted(grant: Grant, snapshot: PolicySnapshot, *, now: float) -> bool:
    """False once its key, namespace or tenant is gone, not active or expired. `now` is in Unix seconds.

    A new generation of the namespace's salt ends no request: what runs under the old salt only fills a cache that
    nobody can reach any more. A model that moved to another pool, or from the namespace's list, ends none either.
    """
    key = snapshot.keys.get(grant.key)
    namespace = snapshot.namespaces.get(grant.namespace)
    tenant = snapshot.tenants.get(grant.tenant)
    if key is None or namespace is None or tenant is None:
        return False
    if key.expires_at is not None and key.expires_at <= now:
        return False
    return key.status == namespace.status == tenant.status == "active"
