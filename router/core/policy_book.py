"""Who is asking: API key and model name to a `Grant`, from the snapshot in force.

Hot path: one keyed hash of the key text and one dict lookup. Cold path: one HMAC and one constant-time compare,
also for keys that are malformed or absent (S13), so that foreign, absent and revoked look the same (S12).
Memory: O(keys + namespaces + pools) of the snapshot, plus at most `verified_keys_max` remembered pairs.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from router.contract.ids import KeyId, NamespaceId, PoolId
from router.contract.secrets import FleetKey, split_api_key
from router.contract.snapshot import KeyGrant, NamespacePolicy, PolicySnapshot
from router.core.model import Grant, InvalidKey, ModelNotFound, NamespaceStale, NamespaceUnready

_DUMMY_ID = KeyId("0" * 12)
_DUMMY_SECRET = "0" * 43
_INVALID_KEY = "Incorrect API key provided."
_MODEL_NAME_SHOWN_MAX = 128
"""Characters of a client's model name repeated in its own error message."""


class PolicyBook:
    """One snapshot's answers. Replaced content, never merged: `apply` forgets every remembered key."""

    def __init__(self, *, fleet_key: FleetKey, verified_keys_max: int, stale_deny_after_s: float) -> None:
        self._fleet_key = fleet_key
        self._cache_key = fleet_key.subkey("key-cache/v1")
        self._verified_keys_max = verified_keys_max
        self._stale_deny_after_s = stale_deny_after_s
        self._snapshot: PolicySnapshot | None = None
        self._pool_of_model: dict[str, PoolId] = {}
        self._salts: dict[tuple[NamespaceId, str], str] = {}
        self._grants: dict[tuple[bytes, str], tuple[Grant, float | None]] = {}
        self._dummy_hash = fleet_key.api_key_hash(_DUMMY_ID, _DUMMY_SECRET)

    def apply(self, snapshot: PolicySnapshot) -> None:
        """Take a verified snapshot. Salts of generations that stay are kept, others are dropped."""
        self._snapshot = snapshot
        self._grants.clear()
        self._pool_of_model = {
            model: pool for pool, policy in sorted(snapshot.pools.items(), reverse=True) for model in policy.models
        }
        current = {(namespace, policy.generation_nonce) for namespace, policy in snapshot.namespaces.items()}
        self._salts = {key: salt for key, salt in self._salts.items() if key in current}

    def resolve(self, *, api_key: str | None, model: str, age_s: float, now: float) -> Grant:
        """The grant of a key for a model. `age_s` is the age of the snapshot's last confirmation in seconds.

        Raises InvalidKey, ModelNotFound, NamespaceStale or NamespaceUnready.
        """
        digest = self._digest(api_key or "")
        remembered = self._grants.get((digest, model))
        if remembered is None:
            remembered = self._resolve_cold(api_key, model, now)
            self._remember(digest, model, remembered)
        grant, expires_at = remembered
        if expires_at is not None and now >= expires_at:
            raise InvalidKey(_INVALID_KEY)
        if grant.policy.on_stale == "deny" and age_s > self._stale_deny_after_s:
            raise NamespaceStale("The service cannot confirm its access policy at the moment. Please retry.")
        return grant

    def grant_of(self, namespace: NamespaceId, *, model: str) -> Grant:
        """What an active key of the namespace would be granted: for explanations, never for a request.

        Raises ModelNotFound or NamespaceUnready.
        """
        snapshot = self._current()
        policy = snapshot.namespaces.get(namespace)
        pool = self._pool_of_model.get(model)
        if policy is None or pool is None or (policy.models and model not in policy.models):
            raise ModelNotFound(f"The model `{model[:_MODEL_NAME_SHOWN_MAX]}` or the namespace does not exist.")
        return Grant(_DUMMY_ID, policy.tenant, namespace, policy, pool, model, self._salt(namespace, policy))

    def visible_models(self, *, api_key: str | None, now: float) -> list[str]:
        """Model names the key may use, sorted. Raises InvalidKey or NamespaceUnready."""
        snapshot = self._current()
        _, grant = self._verified(snapshot, api_key, now)
        return sorted(self._models_of(snapshot.namespaces[grant.namespace]))

    def _resolve_cold(self, api_key: str | None, model: str, now: float) -> tuple[Grant, float | None]:
        snapshot = self._current()
        key, key_grant = self._verified(snapshot, api_key, now)
        policy = snapshot.namespaces[key_grant.namespace]
        pool = self._pool_of_model.get(model)
        if pool is None or (policy.models and model not in policy.models):
            raise ModelNotFound(
                f"The model `{model[:_MODEL_NAME_SHOWN_MAX]}` does not exist or you do not have access to it."
            )
        salt = self._salt(key_grant.namespace, policy)
        grant = Grant(key, policy.tenant, key_grant.namespace, policy, pool, model, salt)
        return grant, key_grant.expires_at

    def _verified(self, snapshot: PolicySnapshot, api_key: str | None, now: float) -> tuple[KeyId, KeyGrant]:
        """The active key behind a text; one refusal, after the same work, for everything else."""
        key, secret = split_api_key(api_key or "") or (_DUMMY_ID, _DUMMY_SECRET)
        grant = snapshot.keys.get(key)
        expected = grant.hash if grant is not None else self._dummy_hash
        fits = hmac.compare_digest(expected.encode(), self._fleet_key.api_key_hash(key, secret).encode())
        if grant is None or not fits or not _is_active(snapshot, grant, now):
            raise InvalidKey(_INVALID_KEY)
        return key, grant

    def _models_of(self, policy: NamespacePolicy) -> Iterable[str]:
        if not policy.models:
            return self._pool_of_model
        return [model for model in policy.models if model in self._pool_of_model]

    def _salt(self, namespace: NamespaceId, policy: NamespacePolicy) -> str:
        if not policy.generation_nonce:
            raise NamespaceUnready("The service is not ready for this account. Please retry.")
        key = (namespace, policy.generation_nonce)
        salt = self._salts.get(key)
        if salt is None:
            salt = self._fleet_key.cache_salt(policy.tenant, policy.slug, policy.generation_nonce)
            self._salts[key] = salt
        return salt

    def _remember(self, digest: bytes, model: str, entry: tuple[Grant, float | None]) -> None:
        if len(self._grants) >= self._verified_keys_max:
            self._grants.clear()
        self._grants[(digest, model)] = entry

    def _digest(self, text: str) -> bytes:
        """A keyed stand-in for the key text, so that no secret is kept in memory longer than its request."""
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=self._cache_key, digest_size=16).digest()

    def _current(self) -> PolicySnapshot:
        if self._snapshot is None:
            raise NamespaceUnready("The service is starting. Please retry.")
        return self._snapshot


def _is_active(snapshot: PolicySnapshot, grant: KeyGrant, now: float) -> bool:
    tenant = snapshot.tenants.get(grant.tenant)
    namespace = snapshot.namespaces.get(grant.namespace)
    return (
        grant.status == "active"
        and (grant.expires_at is None or now < grant.expires_at)
        and tenant is not None
        and tenant.status == "active"
        and namespace is not None
        and namespace.status == "active"
        and namespace.tenant == grant.tenant
    )
