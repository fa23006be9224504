"""Who is asking: API key and model name to a `Grant`, from the snapshot in force.

Hot path: one keyed hash of the key text and one dict lookup. Cold path: one HMAC and one constant-time compare,
also for keys that are malformed or absent (S13), so that foreign, absent and revoked look the same (S12).
Memory: O(keys + namespaces + pools) of the snapshot, plus at most `verified_keys_max` remembered pairs.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Final

import msgspec

from router.contract.ids import KeyId, NamespaceId, PoolId, TenantId
from router.contract.public import public_digest, public_key
from router.contract.secrets import FleetKey, split_api_key
from router.contract.snapshot import KeyGrant, ModelGeneration, NamespacePolicy, PolicySnapshot, TenantGrant
from router.core.model import Grant, InvalidKey, ModelNotFound, NamespaceStale, NamespaceUnready
from router.core.sharing import PUBLIC, Shared, in_domain, shared_domains

_DUMMY_ID: Final = KeyId("0" * 12)
_DUMMY_SECRET: Final = "0" * 43
_DUMMY_KEY: Final = f"tm_{_DUMMY_ID}_{_DUMMY_SECRET}"
"""Taken apart in place of a text of another form: as much work as for a key."""
_NEVER: Final = float("inf")
_NO_TENANT: Final = TenantGrant(status="revoked")
_NO_NAMESPACE: Final = NamespacePolicy(TenantId(""), "", "", status="revoked")
_INVALID_KEY: Final = "Incorrect API key provided."
STALE: Final = "The service cannot confirm its access policy at the moment. Please retry."
_MODEL_NAME_SHOWN_MAX: Final = 128
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
        self._salts: dict[tuple[str, str], str] = {}
        self._shared: dict[NamespaceId, Shared] = {}
        self._public_key = public_key(fleet_key)
        self._public_texts: frozenset[str] = frozenset()
        self._grants: dict[tuple[bytes, str], tuple[Grant, float | None]] = {}
        # Of no tenant, and so never active: what a key that is not in the snapshot is compared with.
        dummy_hash = fleet_key.api_key_hash(_DUMMY_ID, _DUMMY_SECRET)
        self._no_grant = KeyGrant(TenantId(""), NamespaceId(""), dummy_hash, status="revoked")

    def apply(self, snapshot: PolicySnapshot) -> None:
        """Take a verified snapshot. Every salt and every remembered key is forgotten with the one before."""
        self._snapshot = snapshot
        self._grants.clear()
        self._pool_of_model = {
            model: pool for pool, policy in sorted(snapshot.pools.items(), reverse=True) for model in policy.models
        }
        self._salts.clear()
        self._shared = shared_domains(snapshot)
        self._public_texts = frozenset(snapshot.public_texts)

    @property
    def shared_owners(self) -> set[TenantId]:
        """Owners of index shares that are no tenants: domains that tenants share."""
        return {shared.owner for shared in self._shared.values()} | {PUBLIC.owner}

    def grant_for(self, grant: Grant, *, role: str, text: bytes) -> Grant:
        """The grant for a request that consists of one message: another where its text is public (S3.11)."""
        if grant.public is None or public_digest(self._public_key, role=role, text=text) not in self._public_texts:
            return grant
        return grant.public

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
            raise NamespaceStale(STALE)
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
        return self._grant(_DUMMY_ID, namespace, policy, pool, model)

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
        explains = "explain" in key_grant.scopes
        grant = self._grant(key, key_grant.namespace, policy, pool, model, explains=explains)
        return grant, key_grant.expires_at

    def _grant(
        self,
        key: KeyId,
        namespace: NamespaceId,
        policy: NamespacePolicy,
        pool: PoolId,
        model: str,
        *,
        explains: bool = False,
    ) -> Grant:
        generation = self._current().pools[pool].model_generations.get(model)
        domains = [self._shared.get(namespace)]
        if policy.shares_public and self._public_texts:
            domains.insert(0, PUBLIC)
        grant = None
        for shared in domains:
            settled = policy if shared is None else in_domain(policy, shared)
            if generation is not None:
                settled = _of_generation(settled, generation)
            salt = self._salt(namespace, settled, shared)
            model_nonce = "" if generation is None else generation.nonce
            cache, owner = (namespace, policy.tenant) if shared is None else (shared.id, shared.owner)
            grant = Grant(
                key, policy.tenant, namespace, settled, pool, model, salt, model_nonce, explains, cache, owner, grant
            )
        assert grant is not None
        return grant

    def _verified(self, snapshot: PolicySnapshot, api_key: str | None, now: float) -> tuple[KeyId, KeyGrant]:
        """The active key behind a text; one refusal, after the same work, for everything else."""
        own, spare = split_api_key(api_key or ""), split_api_key(_DUMMY_KEY)
        key, secret = own or spare or (_DUMMY_ID, _DUMMY_SECRET)
        grant = snapshot.keys.get(key, self._no_grant)
        fits = hmac.compare_digest(grant.hash.encode(), self._fleet_key.api_key_hash(key, secret).encode())
        # Both texts are split and both questions asked of all: what is skipped shows in the answer's time (S12).
        active = _is_active(snapshot, grant, now)
        if not (fits and active):
            raise InvalidKey(_INVALID_KEY)
        return key, grant

    def _models_of(self, policy: NamespacePolicy) -> Iterable[str]:
        if not policy.models:
            return self._pool_of_model
        return [model for model in policy.models if model in self._pool_of_model]

    def _salt(self, namespace: NamespaceId, policy: NamespacePolicy, shared: Shared | None) -> str:
        if not policy.generation_nonce:
            raise NamespaceUnready("The service is not ready for this account. Please retry.")
        key = (namespace if shared is None else shared.id, policy.generation_nonce)
        salt = self._salts.get(key)
        if salt is None:
            if shared is None:
                salt = self._fleet_key.cache_salt(policy.tenant, policy.slug, policy.generation_nonce)
            else:
                salt = self._fleet_key.domain_salt(shared.id, policy.generation_nonce)
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


def _of_generation(policy: NamespacePolicy, generation: ModelGeneration) -> NamespacePolicy:
    """The namespace's policy for a model in a later generation: nothing made from its nonce meets an earlier one's.

    Nonces are hexadecimal, so no two pairs of them join to one text. Without either there is none (503).
    """
    joined = f"{policy.generation_nonce}.{generation.nonce}" if policy.generation_nonce and generation.nonce else ""
    begun_at = max(policy.generation_at, generation.at)
    return msgspec.structs.replace(policy, generation_nonce=joined, generation_at=begun_at)


def _is_active(snapshot: PolicySnapshot, grant: KeyGrant, now: float) -> bool:
    """Whether key, tenant and namespace are all in force. Every condition is looked at, whatever the others say."""
    tenant = snapshot.tenants.get(grant.tenant, _NO_TENANT)
    namespace = snapshot.namespaces.get(grant.namespace, _NO_NAMESPACE)
    expires_at = _NEVER if grant.expires_at is None else grant.expires_at
    key_in_force = grant.status == "active"
    in_time = now < expires_at
    tenant_in_force = tenant.status == "active"
    namespace_in_force = namespace.status == "active"
    fits_together = namespace.tenant == grant.tenant
    return bool(key_in_force & in_time & tenant_in_force & namespace_in_force & fits_together)
