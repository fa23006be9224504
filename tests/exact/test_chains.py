"""Known prompts give exactly the hashes that the plain formula gives for the whole prompt, whatever came before."""

from __future__ import annotations

import gc
import random
import zlib
from array import array

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from router.contract.ids import TenantId
from router.core.exact.block_hashes import Adapter, BlockHasher
from router.core.exact.chains import (
    BLOCKS_AT_ONCE,
    FAR_STRIDE_BYTES,
    MARK_STRIDE_BYTES,
    ExactPrefix,
    PromptChains,
    Reading,
    Scope,
    run_out,
)
from router.core.exact.segments import Cuts, SegmentCache
from tests.exact.conftest import SECRET

TOKENS = {"<u>": 900, "<u>>": 901, "<a>": 902, "<e>": 903, "e><x": 904}
ALICE = Scope(TenantId("alice"), "salt-a")


def chains(*, block_size: int = 4, bytes_max: int = 10_000_000) -> PromptChains:
    segments = SegmentCache(secret=SECRET, bytes_max=bytes_max, tenant_share_max=0.5)
    hasher = BlockHasher(algorithm="sha256", block_size=block_size)
    return PromptChains(
        hasher=hasher, cuts=Cuts(TOKENS), segments=segments, secret=SECRET, bytes_max=bytes_max, tenant_share_max=0.5
    )


def tokenise(text: bytes) -> array[int]:
    """An id for each 3 bytes of a short piece and each 97 of a long one: tokens do not line up with bytes."""
    size = 3 if len(text) < 100 else 97
    return array("I", [zlib.crc32(text[n : n + size]) for n in range(0, len(text), size)])


def fill(reading: Reading) -> None:
    for piece in reading.unknown:
        piece.ids = tokenise(reading.text[piece.start : piece.end])


def prefix_of(known: PromptChains, scope: Scope, text: bytes) -> ExactPrefix:
    reading = known.read(scope, text)
    fill(reading)
    return known.finish(reading)


def plain(scope: Scope, text: bytes, block_size: int) -> ExactPrefix:
    ids = list(scope.before)
    for piece in Cuts(TOKENS).split(text, 0):
        ids += piece.ids if piece.ids is not None else tokenise(text[piece.start : piece.end])
    ids += scope.after
    hasher = BlockHasher(algorithm="sha256", block_size=block_size)
    return ExactPrefix(hasher.hashes(ids, salt=scope.salt, adapter=scope.adapter), len(ids), block_size)


LONG = ["x" * 3000, "yz" * 4000, "é" * MARK_STRIDE_BYTES, "w" * (MARK_STRIDE_BYTES - 5)]
FRAGMENTS = st.sampled_from([*TOKENS, "hello", "some words", "<", ">", "<x", "é", "", *TOKENS, *LONG])
SCOPES = st.sampled_from([
    ALICE,
    Scope(TenantId("alice"), "salt-b"),
    Scope(TenantId("charlie"), "salt-a"),
    Scope(TenantId("alice"), "salt-a", Adapter("lora", "/a")),
    Scope(TenantId("alice"), "salt-a", before=(7,), after=(8, 9)),
    Scope(TenantId("alice"), "salt-a", before=tuple(range(40))),
])  # fmt: skip


@st.composite
def prompts(draw: st.DrawFn) -> list[tuple[Scope, bytes]]:
    """Prompts that continue or branch off earlier ones."""
    out: list[tuple[Scope, bytes]] = []
    for _ in range(draw(st.integers(1, 6))):
        head = b""
        if out:
            earlier = draw(st.sampled_from(out))[1]
            head = earlier[: draw(st.sampled_from([0, len(earlier), len(earlier) * 2 // 3, MARK_STRIDE_BYTES]))]
            head = head.decode(errors="ignore").encode()
        tail = "".join(draw(st.lists(FRAGMENTS, max_size=6))).encode()
        out.append((draw(SCOPES), head + tail))
    return out


@settings(max_examples=100, deadline=None)
@given(asked=prompts(), block_size=st.sampled_from([1, 3, 16]))
def test_whatever_was_asked_before_a_prompt_gets_its_own_hashes(
    asked: list[tuple[Scope, bytes]], block_size: int
) -> None:
    known = chains(block_size=block_size)
    for scope, text in asked:
        assert prefix_of(known, scope, text) == plain(scope, text, block_size)
        assert known.read(scope, text).prefix == plain(scope, text, block_size)


@settings(max_examples=50, deadline=None)
@given(asked=prompts())
def test_eviction_changes_no_hash(asked: list[tuple[Scope, bytes]]) -> None:
    known = chains(bytes_max=12_000)
    for scope, text in asked * 2:
        assert prefix_of(known, scope, text) == plain(scope, text, 4)


@settings(max_examples=60, deadline=None)
@given(asked=prompts(), order=st.randoms(use_true_random=False))
def test_prompts_worked_on_at_the_same_time_do_not_mix(asked: list[tuple[Scope, bytes]], order: random.Random) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("router.core.exact.chains.BLOCKS_AT_ONCE", 5)
        known = chains(block_size=1)
        under_way = []
        for scope, text in asked:
            reading = known.read(scope, text)
            fill(reading)
            under_way.append((reading, known.work(reading)))
        left = list(under_way)
        while left:
            turn = order.randrange(len(left))
            if next(left[turn][1], "done") == "done":
                del left[turn]
    for reading, _ in under_way:
        assert reading.prefix == plain(reading.scope, reading.text, 1)


SHORT = ("<u>", ">", "<u>>", "<a>", "<e>", "<x", "e><x", "<", "some words", "q" * 9, "k" * 40)
TAILS = st.lists(st.sampled_from(SHORT), max_size=5)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.lists(st.sampled_from(SHORT), max_size=5)), max_size=9)
)
def test_marks_and_long_steps_anywhere_change_no_hash(asked: list[tuple[int, int, list[str]]]) -> None:
    """Marks at every byte, so within tokens and between them; prompts part where a longer token may begin or end."""
    sizes = {"MARK_STRIDE_BYTES": 1, "FAR_BYTES": 24, "FAR_STRIDE_BYTES": 3, "LONG_STEP_BYTES": 4}
    with pytest.MonkeyPatch.context() as patch:
        for name, size in sizes.items():
            patch.setattr(f"router.core.exact.chains.{name}", size)
        known, made = chains(block_size=2), [["k" * 40, "<u>", "q", "<u>"]]
        for which, parted_at, tail in asked:
            made.append(made[which % len(made)][:parted_at] + tail)
            text = "".join(made[-1]).encode()
            assert prefix_of(known, ALICE, text) == plain(ALICE, text, 2)
            assert known.read(ALICE, text).prefix == plain(ALICE, text, 2)


@pytest.mark.parametrize("size", [10_000, 100_000, 300_000])
def test_each_of_many_long_first_messages_is_found_without_trying_the_others(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, rng = chains(), random.Random(1)
    heads = [b"<u>" + rng.randbytes(size // 2).hex().encode() + b"<e>" for _ in range(12)]
    for head in heads:
        prefix_of(known, ALICE, head + b"<u>begin<e>")
    hashed: list[int] = []
    digest = xxhash.xxh3_128_intdigest
    monkeypatch.setattr(
        "router.core.exact.chains.xxhash.xxh3_128_intdigest",
        lambda data, seed: hashed.append(len(data)) or digest(data, seed),
    )
    for head in heads:
        hashed.clear()
        reading = known.read(ALICE, head + b"<u>go on<e>")
        assert reading.unhashed_bytes == len(b"go on<e>")
        assert sum(hashed) <= FAR_STRIDE_BYTES + 100


def test_work_stops_for_others_within_a_long_prompt() -> None:
    known = chains(block_size=1)
    reading = known.read(ALICE, b"<u>" * 5000 + b"q" * 300_000)
    fill(reading)
    assert len(list(known.work(reading))) >= 300_000 // 97 // BLOCKS_AT_ONCE


def test_a_continued_conversation_is_hashed_from_where_it_grew() -> None:
    known = chains()
    head = b"<u>" + b"h" * 20_000 + b"<e><a>" + b"answer " * 40 + b"<e>"
    prefix_of(known, ALICE, head + b"<u>first")
    reading = known.read(ALICE, head + b"<u>second<e>")
    assert reading.unhashed_bytes == len(b"second<e>")
    assert [reading.text[piece.start : piece.end] for piece in reading.unknown] == [b"second"]


def test_known_pieces_are_not_tokenised_again_in_another_place() -> None:
    known = chains()
    prefix_of(known, ALICE, b"<u>words<e>more<e>")
    assert known.read(ALICE, b"<a>more<e>words<e>").unknown == []


def test_another_salt_shares_no_hash_and_another_tenant_not_even_tokens() -> None:
    known, text = chains(), b"<u>" + b"secret words " * 30 + b"<e>"
    mine = prefix_of(known, ALICE, text)
    rotated = known.read(Scope(TenantId("alice"), "salt-b"), text)
    assert rotated.prefix is None and rotated.unknown == [] and rotated.unhashed_bytes == len(text)
    assert not set(known.finish(rotated).hashes) & set(mine.hashes)
    assert known.read(Scope(TenantId("charlie"), "salt-a"), text).unknown != []


def test_a_longer_token_behind_a_known_end_is_seen() -> None:
    known = chains()
    for text in (b"words<u>", b"words<u>>", b"words<u>x"):
        assert prefix_of(known, ALICE, text) == plain(ALICE, text, 4)


def test_the_last_token_is_never_counted_as_hittable() -> None:
    assert [ExactPrefix([], tokens, 16).hittable_blocks for tokens in (0, 1, 16, 17, 32, 33)] == [0, 0, 0, 1, 1, 2]


@given(ids=st.lists(st.integers(0, 2**32 - 1), max_size=300), more=st.lists(st.integers(0, 9), max_size=50))
def test_prompts_of_token_ids_get_the_plain_hashes(ids: list[int], more: list[int]) -> None:
    known, hasher = chains(), BlockHasher(algorithm="sha256", block_size=4)
    for tokens in (ids, ids * 20 + more, ids * 20 + more + more, ids):
        expected = ExactPrefix(hasher.hashes(tokens, salt=ALICE.salt), len(tokens), 4)
        assert run_out(known.work_ids(ALICE, tokens)) == expected


@pytest.mark.parametrize("ids", [[-1], [2**32]])
def test_token_ids_out_of_range_are_refused(ids: list[int]) -> None:
    with pytest.raises(OverflowError):
        run_out(chains().work_ids(ALICE, ids))


def test_memory_stays_within_its_bound() -> None:
    known = chains(bytes_max=400_000)
    most = 0
    for number in range(3000):
        tenant = TenantId(f"t{number % 7}")
        prefix_of(known, Scope(tenant, "salt"), b"<u>%d" % number + b"w" * (number % 900) + b"<e>tail")
        most = max(most, known.bytes_used)
    assert 300_000 < most < 440_000


def test_one_tenant_cannot_push_out_another() -> None:
    known = chains(bytes_max=400_000)
    small = Scope(TenantId("small"), "salt")
    prefix_of(known, small, b"<u>small tenant's prompt<e>")
    for number in range(3000):
        prefix_of(known, ALICE, b"<u>%d<e>" % number + b"x" * 400)
    assert known.read(small, b"<u>small tenant's prompt<e>").prefix is not None


def test_what_is_evicted_is_given_back() -> None:
    known = chains(bytes_max=200_000)
    for number in range(500):
        prefix_of(known, Scope(TenantId(f"t{number}"), "salt"), b"<u>" + b"w" * 600 + b"<e>")
    gc.collect()
    assert known.bytes_used < 220_000
