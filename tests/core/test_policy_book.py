"""Who is asking: S2, S12, S13."""

from __future__ import annotations

import msgspec
import pytest

from router.contract.ids import PoolId, TenantId
from router.contract.snapshot import PolicySnapshot, PoolPolicy, TenantGrant
from router.core.model import InvalidKey, ModelNotFound, NamespaceStale, NamespaceUnready
from tests.core.scene import FLEET_KEY, MODEL, POOL, Scene, api_key, key_id, namespace_id, snapshot

replace = msgspec.structs.replace


def with_key(policy: PolicySnapshot, tenant: str, **changes: object) -> PolicySnapshot:
    return replace(policy, keys={**policy.keys, key_id(tenant): replace(policy.keys[key_id(tenant)], **changes)})


def with_namespace(policy: PolicySnapshot, tenant: str, **changes: object) -> PolicySnapshot:
    name = namespace_id(tenant)
    return replace(policy, namespaces={**policy.namespaces, name: replace(policy.namespaces[name], **changes)})


def refusal(scene: Scene, key: str | None) -> tuple[type, int, str]:
    with pytest.raises(InvalidKey) as caught:
        scene.table.resolve(api_key=key, model=MODEL, now=scene.now)
    return type(caught.value), caught.value.status, caught.value.message


def test_it_resolves_a_key_to_its_tenant_namespace_pool_and_salt() -> None:
    grant = Scene().grant("alice")
    assert (grant.tenant, grant.namespace, grant.pool, grant.model) == ("alice", "alice/main", POOL, MODEL)
    assert grant.salt == FLEET_KEY.cache_salt("alice", "main", "nonce-alice")


def test_it_gives_two_tenants_two_salts() -> None:
    scene = Scene()
    assert scene.grant("alice").salt != scene.grant("charlie").salt


def test_it_changes_the_salt_with_the_generation() -> None:
    scene = Scene()
    before = scene.grant().salt
    scene.publish(with_namespace(scene.policy, "alice", generation=2, generation_nonce="second"))
    assert scene.grant().salt != before


def test_it_refuses_foreign_absent_revoked_expired_and_malformed_keys_alike() -> None:
    base = snapshot()
    suspended = replace(base, tenants={**base.tenants, TenantId("alice"): TenantGrant("suspended")})
    refusals = {
        refusal(Scene(), None),
        refusal(Scene(), "sk-not-ours"),
        refusal(Scene(), api_key("nobody")),
        refusal(Scene(), api_key("alice")[:-1] + "y"),
        refusal(Scene(), "tm_alice0000000_\ud800"),
        refusal(Scene(with_key(base, "alice", status="revoked")), api_key("alice")),
        refusal(Scene(with_key(base, "alice", expires_at=999.0)), api_key("alice")),
        refusal(Scene(with_namespace(base, "alice", status="suspended")), api_key("alice")),
        refusal(Scene(suspended), api_key("alice")),
    }
    assert len(refusals) == 1
    assert refusals.pop()[:2] == (InvalidKey, 401)


def test_it_checks_a_hash_also_for_keys_that_do_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    seen: list[str] = []
    real = type(FLEET_KEY).api_key_hash
    monkeypatch.setattr(type(FLEET_KEY), "api_key_hash", lambda self, *a: seen.append(a[0]) or real(self, *a))
    refusal(scene, "sk-not-ours")
    refusal(scene, api_key("nobody"))
    assert len(seen) == 2


def test_it_expires_a_remembered_key_at_its_moment() -> None:
    scene = Scene(with_key(snapshot(), "alice", expires_at=1010.0))
    scene.grant("alice")
    scene.now = 1010.0
    refusal(scene, api_key("alice"))


def test_it_forgets_a_remembered_key_when_a_snapshot_revokes_it() -> None:
    scene = Scene()
    scene.grant("alice")
    scene.publish(with_key(scene.policy, "alice", status="revoked"))
    refusal(scene, api_key("alice"))


def test_it_never_serves_a_namespace_without_a_nonce() -> None:
    scene = Scene(with_namespace(snapshot(), "alice", generation_nonce=""))
    with pytest.raises(NamespaceUnready) as caught:
        scene.grant("alice")
    assert caught.value.status == 503


def test_it_refuses_foreign_and_absent_models_with_one_message() -> None:
    policy = with_namespace(snapshot(), "alice", models=("llama-8b",))
    policy = replace(policy, pools={**policy.pools, PoolId("qwen"): PoolPolicy(models=("qwen-7b",))})
    scene = Scene(policy)
    messages = set()
    for model in ("qwen-7b", "no-such"):
        with pytest.raises(ModelNotFound) as caught:
            scene.grant("alice", model)
        messages.add(caught.value.message.replace(model, "…"))
    assert len(messages) == 1
    assert scene.table.visible_models(api_key=api_key("alice"), now=scene.now) == ["llama-8b"]


def test_it_lists_every_model_for_a_namespace_without_a_list() -> None:
    policy = snapshot()
    policy = replace(policy, pools={**policy.pools, PoolId("qwen"): PoolPolicy(models=("qwen-7b",))})
    assert Scene(policy).table.visible_models(api_key=api_key("alice"), now=1000.0) == ["llama-8b", "qwen-7b"]


def test_it_denies_a_stale_namespace_only_where_policy_says_so() -> None:
    deny = Scene(with_namespace(snapshot(), "alice", on_stale="deny"))
    deny.now += 60
    with pytest.raises(NamespaceStale):
        deny.grant("alice")
    assert deny.grant("charlie").tenant == "charlie"
    deny.table.confirm_snapshot(lease_now=deny.now)
    assert deny.grant("alice").tenant == "alice"


def test_it_bounds_what_it_remembers() -> None:
    scene = Scene()
    for number in range(5000):
        with pytest.raises(ModelNotFound):
            scene.grant("alice", f"model-{number}")
    assert len(scene.table._book._grants) <= scene.limits.verified_keys_max
