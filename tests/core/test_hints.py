"""Routers tell each other where prompts went: the next turn finds its worker, whichever router it reaches."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.contract.ids import TenantId, WorkerId
from router.contract.secrets import FleetKey
from router.core.hints import ANCHORS, FRESH_S, KEY_BYTES, OUTBOX_MAX, OUTBOX_TENANT_MAX, Hints, Placed
from tests.core.scene import Scene, prompt, snapshot, worker_id

ALICE, CHARLIE = TenantId("alice"), TenantId("charlie")
W = [worker_id(number) for number in range(4)]
BLOCK_BYTES = 512


def hints(*, bytes_max: int = 1 << 20, key: bytes = bytes(32)) -> Hints:
    return Hints(fleet_key=FleetKey(key), bytes_max=bytes_max, tenant_share_max=0.5)


def chain(length: int, seed: int = 1) -> list[int]:
    rng = random.Random(seed)
    return [rng.getrandbits(128) for _ in range(length)]


def fleet(**fields: object) -> tuple[Scene, Scene]:
    """Two routers that know of each other."""
    one, two = Scene(snapshot(**fields)), Scene(snapshot(**fields))
    one.table.other_routers = two.table.other_routers = 1
    return one, two


def tell(to: Scene, by: Scene) -> None:
    to.table.hear_placed(by.table.take_placed(), now=to.now)


def test_the_next_turn_finds_its_worker_at_another_router() -> None:
    one, two = fleet()
    text = prompt(1, 40_000)
    holder = one.serve(text)
    away = prompt(7, 40_000)
    while two.choose(away).worker == holder:
        two.start(away)
    assert two.choose(text).predicted_hit_tokens == 0
    tell(two, one)
    made = two.choose(text + prompt(2, 2_000))
    assert made.worker == holder
    deepest = max(depth for depth in ANCHORS if depth <= 40_000 // BLOCK_BYTES)
    assert made.predicted_hit_tokens == deepest * BLOCK_BYTES // 4


def test_a_router_alone_tells_nothing() -> None:
    scene = Scene()
    scene.serve(prompt(1, 40_000))
    assert scene.table.take_placed() == []


def test_a_longer_prompt_tells_only_what_is_new() -> None:
    one, _ = fleet()
    text = prompt(1, 40_000)
    holder = one.serve(text)
    first = one.table.take_placed()
    assert sum(len(each.anchors) for each in first) // KEY_BYTES == sum(d <= 78 for d in ANCHORS)
    assert one.serve(text + prompt(2, 20_000)) == holder
    again = one.table.take_placed()
    assert sum(len(each.anchors) for each in again) // KEY_BYTES == sum(78 < d <= 117 for d in ANCHORS)


def test_other_tenants_and_other_fleet_keys_learn_nothing() -> None:
    one, two = fleet(tenants=("alice", "charlie"))
    text = prompt(1, 40_000)
    one.serve(text, "alice")
    placed = one.table.take_placed()
    two.table.hear_placed(placed, now=two.now)
    assert two.choose(text, "charlie").predicted_hit_tokens == 0
    # Not even when the message claims to be of the other tenant: the names come of the tenant's own secret root.
    two.table.hear_placed([Placed(CHARLIE, each.worker, each.anchors) for each in placed], now=two.now)
    assert two.choose(text, "charlie").predicted_hit_tokens == 0
    blocks, teller, stranger = chain(64), hints(), hints(key=b"x" * 32)
    teller.tell(ALICE, blocks, W[0], known=0)
    stranger.hear(teller.take_outbox(), now=1.0)
    assert stranger.holders(ALICE, blocks, beyond=0, now=1.0) == {}


def test_what_leaves_the_process_is_no_block_hash() -> None:
    blocks, teller = chain(64), hints()
    teller.tell(ALICE, blocks, W[0], known=0)
    sent = b"".join(each.anchors for each in teller.take_outbox())
    assert sent and not any(block.to_bytes(16) in sent or block.to_bytes(16, "little") in sent for block in blocks)


def test_own_knowledge_that_reaches_further_is_kept() -> None:
    one, two = fleet()
    text = prompt(1, 40_000)
    own = two.serve(text)
    two.table.take_placed()
    one.table.hear_placed([], now=one.now)
    other = next(worker for worker in W if worker != own)
    two.table.hear_placed([Placed(ALICE, other, _anchors(two, text))], now=two.now)
    assert two.choose(text).worker == own


def _anchors(scene: Scene, text: bytes) -> bytes:
    """What a third router would tell of the text."""
    teller = Scene(snapshot())
    teller.table.other_routers = 1
    teller.serve(text)
    return b"".join(each.anchors for each in teller.table.take_placed())


def test_a_worker_that_was_emptied_holds_nothing_of_what_was_told_before() -> None:
    one, two = fleet()
    text = prompt(1, 40_000)
    holder = one.serve(text)
    tell(two, one)
    two.table.worker_forgotten(holder)
    assert two.choose(text).predicted_hit_tokens == 0
    one.now += 1
    two.now += 1
    one.table.worker_forgotten(holder)
    while one.serve(text) != holder:
        pass
    tell(two, one)
    assert two.choose(text).predicted_hit_tokens > 0


def test_old_words_are_not_taken() -> None:
    teller, listener, blocks = hints(), hints(), chain(64)
    teller.tell(ALICE, blocks, W[0], known=0)
    listener.hear(teller.take_outbox(), now=100.0)
    assert listener.holders(ALICE, blocks, beyond=0, now=100.0 + FRESH_S) == {W[0]: 64}
    assert listener.holders(ALICE, blocks, beyond=0, now=101.0 + FRESH_S) == {}


@pytest.mark.parametrize("beyond", [0, 31, 32, 63, 64, 200])
def test_only_what_reaches_beyond_what_is_known_is_said(beyond: int) -> None:
    teller, listener, blocks = hints(), hints(), chain(70)
    teller.tell(ALICE, blocks, W[0], known=0)
    listener.hear(teller.take_outbox(), now=1.0)
    assert listener.holders(ALICE, blocks, beyond=beyond, now=1.0) == ({W[0]: 64} if beyond < 64 else {})


def test_a_flood_of_one_tenant_leaves_room_for_anothers_words() -> None:
    teller = hints()
    for seed in range(OUTBOX_MAX):
        teller.tell(CHARLIE, chain(16, seed), W[0], known=0)
    blocks = chain(64, seed=10**6)
    teller.tell(ALICE, blocks, W[1], known=0)
    placed = teller.take_outbox()
    assert sum(len(each.anchors) for each in placed if each.tenant == CHARLIE) <= OUTBOX_TENANT_MAX * KEY_BYTES
    assert any(each.tenant == ALICE for each in placed) and teller.untold > 0
    assert teller.take_outbox() == []


def test_what_is_heard_stays_within_its_bytes() -> None:
    listener, teller = hints(bytes_max=200_000), hints()
    for seed in range(2_000):
        teller.tell(TenantId(f"t{seed % 7}"), chain(32, seed), W[seed % 4], known=0)
        listener.hear(teller.take_outbox(), now=float(seed))
    assert 0 < listener.size_bytes <= 230_000


@given(st.binary(max_size=200), st.text(max_size=5), st.text(max_size=5))
def test_bytes_that_mean_nothing_are_harmless(anchors: bytes, tenant: str, worker: str) -> None:
    listener, blocks = hints(), chain(16)
    listener.hear([Placed(TenantId(tenant), WorkerId(worker), anchors)], now=1.0)
    assert listener.holders(ALICE, blocks, beyond=0, now=1.0) == {}


def test_a_worker_that_is_none_of_the_fleet_is_not_chosen() -> None:
    _, two = fleet()
    text = prompt(1, 40_000)
    two.table.hear_placed([Placed(ALICE, WorkerId("elsewhere/w9"), _anchors(two, text))], now=two.now)
    assert two.choose(text).predicted_hit_tokens == 0
