"""Prefix identity: S0.1, C19, S5."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.contract.ids import NamespaceId, PoolId, TemplateRef
from router.contract.snapshot import PoolPolicy
from router.core.fingerprint import common_blocks
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
@given(st.integers(0, 3), st.integers(0, 3), st.integers(0, 40_000), st.integers(1, 40_000))
def test_remembered_chunks_change_no_hash(one: int, two: int, parted_at: int, length: int) -> None:
    """Prompts that share a head of any length, hashed after each other and by a router that never saw one before."""
    texts = [prompt(seed, 40_000)[:parted_at] + prompt(10 + other, length) for seed, other in ((one, two), (one, one))]
    warm = Scene()
    for tenant in ("alice", "charlie"):
        for text in (*texts, *texts):
            assert warm.request(text, tenant).fingerprint == Scene().request(text, tenant).fingerprint


def test_remembered_chunks_are_bounded_and_the_least_used_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.core.fingerprint.CHUNKS_MAX", 4)
    scene = Scene()
    chunks = scene.table._fingerprinter._chunks
    for seed in range(6):
        scene.request(prompt(0, 16_384))
        scene.request(prompt(seed, 16_384))
        assert len(chunks) <= 4
    kept = set(chunks)
    scene.request(prompt(0, 16_384))
    assert set(chunks) == kept
