"""Who shares a cache with whom, as the router salts, indexes and judges it: projects and trust groups."""

from __future__ import annotations

import msgspec
import pytest

from router.contract.ids import TenantId
from router.contract.snapshot import CacheDomain, PolicySnapshot
from router.core.limits import CoreLimits
from router.core.model import NamespaceUnready
from tests.core.scene import Scene, namespace_id, prompt, snapshot

TENANTS = ("alice", "bob", "charlie")
GROUP = "group:alliance"


def sharing(
    *members: str, nonce: str = "d0", generation_at: float = 0.0, **changes: dict[str, object]
) -> PolicySnapshot:
    """Alice, Bob and Charlie; the named ones are in one trust group. `changes`: tenant → fields of its namespace."""
    plain = snapshot(tenants=TENANTS)
    namespaces = dict(plain.namespaces)
    for tenant in TENANTS:
        fields = {"domain": GROUP if tenant in members else "", **changes.get(tenant, {})}
        namespaces[namespace_id(tenant)] = msgspec.structs.replace(namespaces[namespace_id(tenant)], **fields)
    domain = CacheDomain("group", nonce)
    return msgspec.structs.replace(plain, namespaces=namespaces, domains={GROUP: domain})


def salts(policy: PolicySnapshot, *tenants: str) -> list[str]:
    scene = Scene(policy=policy)
    return [scene.grant(tenant).salt for tenant in tenants]


def with_tenant(policy: PolicySnapshot, tenant: str, status: str) -> PolicySnapshot:
    grant = msgspec.structs.replace(policy.tenants[TenantId(tenant)], status=status)
    return msgspec.structs.replace(policy, tenants={**policy.tenants, TenantId(tenant): grant})


def test_members_have_one_salt_and_others_their_own() -> None:
    private = salts(sharing(), *TENANTS)
    shared = salts(sharing("alice", "bob"), *TENANTS)
    assert shared[0] == shared[1] and len({*private, *shared}) == 4
    assert shared[2] == private[2], "who does not share is not touched"


def test_what_a_member_sent_is_found_for_another_and_for_nobody_else() -> None:
    scene, text = Scene(policy=sharing("alice", "bob")), prompt(1, 8000)
    scene.finish(scene.start_on(2, text, "alice"), cached=0)
    for tenant, blocks in (("bob", 15), ("charlie", 0)):
        decision = scene.table.choose(scene.request(text, tenant), now=scene.now)
        assert decision.matched_blocks == blocks, tenant
        assert blocks == 0 or decision.worker == "llama/w2"


def test_a_members_hit_on_anothers_prompt_is_no_violation_and_a_strangers_is() -> None:
    scene, text = Scene(policy=sharing("alice", "bob")), prompt(1, 8000)
    scene.now += 5
    scene.fresh_caches()
    scene.finish(scene.start_on(0, text, "alice"), cached=0)
    assert scene.finish(scene.start_on(0, text, "bob"), cached=1984).isolation == "ok"
    assert scene.finish(scene.start_on(0, text, "charlie"), cached=1984).isolation == "violation"


LEAVING = {
    "it leaves the group": sharing("alice"),
    "its namespace is revoked": sharing("alice", "bob", bob={"status": "revoked"}),
    "its namespace is suspended": sharing("alice", "bob", bob={"status": "suspended"}),
    "its tenant is revoked": with_tenant(sharing("alice", "bob"), "bob", "revoked"),
    "its generation is rotated": sharing("alice", "bob", bob={"generation_nonce": "next", "generation": 2}),
    "somebody joins": sharing("alice", "bob", "charlie"),
    "the group's generation is rotated": sharing("alice", "bob", nonce="d1"),
}


@pytest.mark.parametrize("event", LEAVING)
def test_the_others_meet_an_empty_cache_when(event: str) -> None:
    """What a former member left behind is unhittable at once, in the workers and in the index (S3.8)."""
    scene, text = Scene(policy=sharing("alice", "bob")), prompt(1, 8000)
    before = scene.grant("alice").salt
    scene.finish(scene.start_on(0, text, "bob"), cached=0)
    scene.publish(LEAVING[event])
    assert scene.grant("alice").salt != before
    assert scene.table.choose(scene.request(text, "alice"), now=scene.now).matched_blocks == 0


def test_a_group_that_the_snapshot_lacks_is_none() -> None:
    policy = msgspec.structs.replace(sharing("alice", "bob"), domains={})
    assert salts(policy, *TENANTS) == salts(sharing(), *TENANTS)


def test_a_project_never_joins_two_tenants_whatever_the_snapshot_says() -> None:
    policy = sharing("alice", "bob")
    domain = msgspec.structs.replace(policy.domains[GROUP], kind="project")
    assert salts(msgspec.structs.replace(policy, domains={GROUP: domain}), *TENANTS) == salts(sharing(), *TENANTS)


def test_a_group_without_nonce_serves_nobody_rather_than_unsalted() -> None:
    scene = Scene(policy=sharing("alice", "bob", nonce=""))
    with pytest.raises(NamespaceUnready):
        scene.grant("alice")
    assert scene.grant("charlie").salt


def test_a_group_has_its_own_share_of_the_index() -> None:
    """Its prefixes push out neither member's private ones, and stay while a snapshot of the same members comes."""
    scene = Scene(policy=sharing("alice", "bob"), limits=CoreLimits(index_bytes_max=128 * 3000))

    def known(text: bytes, tenant: str) -> int:
        decision = scene.table.choose(scene.request(text, tenant), now=scene.now, explain=True)
        return max(candidate.matched_tokens for candidate in decision.candidates)

    text = prompt(1, 8000)
    scene.finish(scene.start_on(0, text, "charlie"), cached=0)
    for seed in range(400):
        scene.finish(scene.start_on(seed % 4, prompt(seed + 10, 8000), "bob"), cached=0)
    assert known(text, "charlie") > 1000
    scene.publish(sharing("alice", "bob"))
    assert known(prompt(409, 8000), "alice") > 1000
