"""Prefix identity: S0.1, C19, S5."""

from __future__ import annotations

import msgspec
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from router.contract.ids import NamespaceId, PoolId, TemplateRef, TenantId
from router.contract.snapshot import PoolPolicy
from router.core.fingerprint import common_blocks
from router.core.limits import CoreLimits
from tests.core.scene import POOL, Scene, namespace_id, prompt, snapshot

TEXT = prompt(1, 5000)


def hashes(scene: Scene, text: bytes, tenant: str = "alice", model: str = "llama-8b") -> list[int]:
    return scene.table.fingerprint(scene.grant(tenant, model), text, template=TemplateRef("")).hashes


def test_a_tail_shorter_than_a_block_changes_nothing() -> None:
    scene = Scene()
    assert hashes(scene, TEXT[:4608]) == hashes(scene, TEXT[:4608] + b"tail")
    assert len(hashes(scene, TEXT[:4608])) == 9
    assert hashes(scene, TEXT[:511]) == []


def test_two_routers_of_one_fleet_agree() -> None:
    assert hashes(Scene(seed=1), TEXT) == hashes(Scene(seed=2, booted_at=5.0), TEXT)


def test_c19_equal_texts_of_two_namespaces_share_no_hash() -> None:
    scene = Scene()
    assert not set(hashes(scene, TEXT, "alice")) & set(hashes(scene, TEXT, "charlie"))


def test_c19_a_rotated_generation_shares_no_hash() -> None:
    scene = Scene()
    before = hashes(scene, TEXT)
    name = NamespaceId(namespace_id("alice"))
    rotated = msgspec.structs.replace(scene.policy.namespaces[name], generation=2, generation_nonce="second")
    scene.publish(msgspec.structs.replace(scene.policy, namespaces={**scene.policy.namespaces, name: rotated}))
    assert not set(before) & set(hashes(scene, TEXT))


def test_c23_two_models_of_one_pool_share_no_hash() -> None:
    scene = Scene(snapshot(pool=PoolPolicy(models=("llama-8b", "llama-8b-adapter"))))
    assert PoolId(POOL) == scene.grant(model="llama-8b-adapter").pool
    assert not set(hashes(scene, TEXT)) & set(hashes(scene, TEXT, model="llama-8b-adapter"))


def test_hashes_are_128_bits_wide() -> None:
    values = hashes(Scene(), prompt(2, 512 * 200))
    assert max(values).bit_length() > 120
    assert all(value.bit_length() <= 128 for value in values)


def test_text_beyond_the_bound_is_not_hashed() -> None:
    scene = Scene()
    found = scene.table.fingerprint(scene.grant(), bytes(512 * 9000), template=TemplateRef(""))
    assert len(found.hashes) == scene.limits.blocks_max
    assert found.text_bytes == 512 * 9000


@given(st.binary(max_size=4000), st.binary(max_size=2000), st.binary(max_size=2000))
def test_chains_agree_exactly_on_the_common_whole_blocks(head: bytes, left: bytes, right: bytes) -> None:
    scene = Scene()
    one, two = head + left, head + right
    same = 0
    while same < min(len(one), len(two)) and one[same] == two[same]:
        same += 1
    assert common_blocks(hashes(scene, one), hashes(scene, two)) == min(same // 512, len(one) // 512, len(two) // 512)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 3), st.integers(0, 3), st.integers(0, 300_000), st.integers(1, 300_000))
def test_known_heads_change_no_hash(one: int, two: int, parted_at: int, length: int) -> None:
    """Prompts that share a head of any length, hashed after each other and by a router that never saw one before."""
    texts = [prompt(seed, 300_000)[:parted_at] + prompt(10 + other, length) for seed, other in ((one, two), (one, one))]
    warm = Scene()
    for tenant in ("alice", "charlie"):
        for text in (*texts, *texts):
            assert hashes(warm, text, tenant) == hashes(Scene(), text, tenant)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3 * 256 + 40), st.integers(0, 3 * 256 + 40))
def test_every_hash_is_that_of_its_block_seeded_with_the_one_before(blocks: int, known: int) -> None:
    scene, text = Scene(), prompt(3, 512 * 900)
    hashes(scene, text[: 512 * known])
    found = hashes(scene, text[: 512 * blocks])
    for before, block in ((at, text[512 * (at + 1) : 512 * (at + 2)]) for at in range(blocks - 1)):
        assert found[before + 1] == xxhash.xxh3_128_intdigest(block, found[before] % 2**64)


@pytest.mark.interpreted
def test_a_known_head_is_not_hashed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, head = Scene(), prompt(4, 256 * 1024 + 40_000)
    hashes(scene, head)
    hashed: list[int] = []
    fingerprinter = scene.table._fingerprinter
    hash_blocks = fingerprinter._hash_blocks
    monkeypatch.setattr(
        fingerprinter, "_hash_blocks", lambda last, data: hashed.append(len(data)) or hash_blocks(last, data)
    )
    hashes(scene, head + prompt(5, 5000))
    assert sum(hashed) <= 16_384 + 5000
    hashes(scene, head, "charlie")
    assert sum(hashed) >= len(head) - 512, "what one tenant sent is known to that tenant alone"


def test_known_heads_are_bounded_by_bytes_and_by_tenant() -> None:
    scene = Scene(limits=CoreLimits(heads_bytes_max=1024 * 1024))
    fingerprinter = scene.table._fingerprinter
    scene.request(prompt(0, 100_000), "charlie")
    for seed in range(600):
        scene.request(prompt(seed, 33_000), "alice")
        assert fingerprinter.heads_bytes <= 1024 * 1024
    assert fingerprinter._heads.shard(TenantId("charlie")).young
