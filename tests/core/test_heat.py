"""Hot prefixes: what leaves the process is bounded and keyed (S5)."""

from __future__ import annotations

from router.core.limits import CoreLimits
from tests.core.scene import Scene, prompt


def test_it_adds_up_conversations_under_one_head_by_worker() -> None:
    scene, head = Scene(), prompt(1, 4096)
    for seed in range(6):
        scene.start_on(seed % 2, prompt(seed, 8000, head=head))
    scene.start_on(0, prompt(99, 8000))
    hottest, other = scene.table.drain_heat(now=scene.now)
    assert hottest.by_worker == {"llama/w0": 3, "llama/w1": 3}
    assert (hottest.namespace, hottest.pool, hottest.tokens) == ("alice/main", "llama", 512)
    assert sum(other.by_worker.values()) == 1
    assert scene.table.drain_heat(now=scene.now) == []


def test_an_id_is_sixteen_hex_digits_stable_and_no_block_hash() -> None:
    scene, text = Scene(), prompt(1, 4096)
    scene.serve(text)
    first = scene.table.drain_heat(now=scene.now)[0].prefix
    scene.serve(text)
    assert scene.table.drain_heat(now=scene.now)[0].prefix == first
    assert len(first) == 16
    fingerprint = scene.request(text).fingerprint
    assert fingerprint is not None
    assert all(first not in f"{block:032x}" for block in fingerprint.hashes)


def test_two_tenants_equal_prompts_have_two_ids() -> None:
    scene, text = Scene(), prompt(1, 4096)
    scene.serve(text, "alice")
    scene.serve(text, "charlie")
    assert len({heat.prefix for heat in scene.table.drain_heat(now=scene.now)}) == 2


def test_it_is_bounded_and_reports_the_hottest() -> None:
    scene = Scene(limits=CoreLimits(heat_prefixes_max=100, heat_top=5))
    hot = prompt(0, 1000)
    for seed in range(300):
        scene.serve(prompt(seed + 1, 1000))
        if seed < 10:
            scene.serve(hot)
    heat = scene.table.drain_heat(now=scene.now)
    assert len(heat) == 5
    assert sum(heat[0].by_worker.values()) == 10
