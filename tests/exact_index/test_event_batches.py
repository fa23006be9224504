"""Batches decode alike whether token ids are cut out, stepped over, or the batch is taken in portions."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.contract.ids import WorkerId
from router.core.exact import event_batches
from router.core.exact.block_index import BlockIndex, Holder
from router.core.exact.event_batches import TOKENS_CUT_MIN, Stored, decode_batch, decode_parts
from router.core.exact.holder_content import Counts, HolderContent

encode = msgspec.msgpack.Encoder().encode
HOLDER = Holder(WorkerId("p/w0"))

KEY = [0x10AA, *b"block_size"]
"""Token ids whose encoding spells the key that follows them."""
IDS = st.one_of(st.integers(0, 150_000), st.sampled_from([0x10AA, 0xAA, 0x1A9AA, 16, *b"block_size"]))
STRINGS = st.sampled_from(["token_ids", "block_size", "\xa9token_ids", "BlockStored", "salt", None])


@st.composite
def stored(draw: st.DrawFn) -> dict[str, object]:
    """With ids and names that look like what the cut looks for."""
    hashes = draw(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4))
    tokens: list[int] = []
    for _ in range(draw(st.integers(0, 4))):
        tokens += draw(st.one_of(st.just(KEY), st.lists(IDS, max_size=TOKENS_CUT_MIN)))
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": draw(st.one_of(st.none(), st.integers(0, 2**64 - 1))),
        "token_ids": tokens,
        "block_size": draw(st.sampled_from([16, 128])),
        "lora_id": None,
        "medium": draw(st.sampled_from(["GPU", "CPU", "token_ids"])),
        "lora_name": draw(STRINGS),
        "extra_keys": draw(st.lists(st.one_of(st.none(), st.lists(STRINGS, max_size=2)), max_size=4)),
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }


removed = st.builds(
    lambda hashes: {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU", "group_idx": 0},
    st.lists(st.integers(0, 2**64 - 1), max_size=3),
)
batches = st.lists(st.one_of(stored(), removed, st.just({"type": "AllBlocksCleared"})), max_size=5)


@settings(max_examples=400, deadline=None)
@given(batches)
def test_cutting_token_ids_out_changes_no_event(events: list[dict[str, object]]) -> None:
    payload = encode([1.5, events, 0])
    decoded = decode_batch(payload)
    assert decoded.events == event_batches._decode(payload).events
    assert (decoded.refused, decoded.unknown) == (0, 0)


@pytest.mark.parametrize("place", [0, 30, 100])
def test_ids_that_spell_the_next_key_are_not_taken_for_it(place: int) -> None:
    tokens = [70_000] * 100
    tokens[place:place] = KEY
    event = {"type": "BlockStored", "block_hashes": [1, 2], "token_ids": tokens, "block_size": 16, "medium": "CPU"}
    payload = encode([1.5, [event], 0])
    assert decode_batch(payload).events == [Stored([1, 2], 16, "CPU")]


def test_long_arrays_of_token_ids_are_cut_out() -> None:
    event = {"type": "BlockStored", "block_hashes": [7], "token_ids": [70_000] * 5000, "block_size": 16}
    shorter = event_batches._without_token_ids(encode([1.5, [event, event], 0]))
    assert shorter is not None
    assert len(shorter) < 200
    assert event_batches._without_token_ids(encode([1.5, [event | {"token_ids": [1] * 10}], 0])) is None


@given(batches, st.binary(max_size=6), st.integers(0, 10_000))
def test_damaged_batches_raise_nothing(events: list[dict[str, object]], noise: bytes, at: int) -> None:
    payload = bytearray(encode([1.5, events, 0]))
    at %= len(payload)
    payload[at : at + len(noise)] = noise
    decoded = decode_batch(bytes(payload))
    assert decoded.refused or decoded.unknown or not decoded.parts


@given(batches.filter(lambda events: len(events) > 0))
def test_a_large_batch_in_portions_gives_the_same_events(events: list[dict[str, object]]) -> None:
    whole = encode([1.5, events * 20, 0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_batches, "EVENTS_AT_ONCE", 16)
        parts = decode_batch(whole).parts
    assert len(parts) == 20 * len(events)
    found = decode_parts(parts[:7]).events + decode_parts(parts[7:]).events
    assert found == decode_batch(whole).events


def content() -> HolderContent:
    index = BlockIndex(bytes_max=1 << 24)
    index.add(HOLDER)
    made = HolderContent(index, HOLDER, Counts(), block_size_tokens=16)
    made.begin()
    return made


def test_a_batch_of_65_536_events_is_applied_a_thousand_blocks_at_a_time() -> None:
    made = content()
    hashes = list(range(1, 65_537))
    made.take(encode([1.5, [{"type": "BlockStored", "block_hashes": hashes, "block_size": 16}], 0]))
    while made.busy:
        made.take_portion()
    removals = [{"type": "BlockRemoved", "block_hashes": [block]} for block in hashes]
    assert made.take(encode([1.5, removals, 0])) is False
    steps = 0
    while made.busy:
        before = made._counts.removed
        made.take_portion()
        steps += 1
        assert made._counts.removed - before <= 1024
    assert steps == 64
    assert made._index.resident_of(HOLDER).device == 0
    assert made.complete
    assert made._counts.removed_unknown == 0


def test_what_is_not_understood_late_in_a_large_batch_ends_exactness() -> None:
    made = content()
    events: list[dict[str, object]] = [{"type": "BlockRemoved", "block_hashes": [1]}] * 5000
    made.take(encode([1.5, [*events, {"type": "BlockTurned"}], 0]))
    while made.busy:
        made.take_portion()
    assert not made.complete
    assert made.reason == "unknown_event"
