"""Where two versions part, in blocks of the pool, and what a roll-out loses of the cache."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.prompts.divergence import compare_versions, divergence
from controlplane.prompts.tokens import TokenCounter, counter_for

COUNTER = TokenCounter(block_size=4)
"""Four bytes a token: 16 bytes a block."""
QUESTION = {"kind": "dynamic", "name": "question", "text": "{question}"}


def _version(*texts: str) -> list[dict[str, str]]:
    return [*({"kind": "static", "name": f"s{n}", "text": text} for n, text in enumerate(texts)), QUESTION]


@pytest.mark.parametrize(
    ("old", "new", "block", "kept", "lost"),
    [
        ("a" * 64, "a" * 64, None, 12, 0),  # the last token is always computed
        ("a" * 64, "a" * 64 + "bbbb", None, 16, 0),
        ("a" * 64, "b" + "a" * 63, 0, 0, 16),
        ("a" * 64, "a" * 20 + "b" * 44, 1, 4, 12),
        ("a" * 64, "a" * 32 + "b" * 200, 2, 8, 8),
        ("a" * 8, "b" * 8, None, 0, 0),  # neither fills a block
    ],
)
def test_whole_blocks_before_the_difference_are_kept(
    old: str, new: str, block: int | None, kept: int, lost: int
) -> None:
    found = divergence(old, new, COUNTER)
    assert (found.first_divergent_block, found.cached_tokens_kept, found.cached_tokens_lost) == (block, kept, lost)


@given(st.text("ab", max_size=80), st.text("ab", max_size=80))
def test_no_more_is_kept_than_both_have(old: str, new: str) -> None:
    found = divergence(old, new, COUNTER)
    assert found.cached_tokens_kept <= found.common_tokens <= min(found.old_tokens, found.new_tokens)
    assert found.cached_tokens_kept % 4 == 0 and found.cached_tokens_lost >= 0


def test_versions_part_at_a_segment_and_character() -> None:
    found = compare_versions(_version("r" * 40, "tools one"), _version("r" * 40, "tools two"), COUNTER)
    assert (found.segment, found.position) == ("s1", 6)
    assert found.first_divergent_block == 2 and not found.exact


def test_equal_versions_lose_nothing() -> None:
    found = compare_versions(_version("r" * 64), _version("r" * 64), COUNTER)
    assert (found.first_divergent_block, found.segment, found.position, found.cached_tokens_lost) == (None, "", None, 0)


def test_it_counts_in_the_pools_own_tokens(exact_pool) -> None:
    counter = counter_for(exact_pool)
    assert counter.exact and counter.name == "lab"
    head = "import os\nfrom collections import defaultdict\n" * 12
    found = divergence(head + "def first():", head + "class Second:", counter)
    common = counter.count(head)
    assert common // 16 * 16 <= found.cached_tokens_kept + 16 and found.exact
    assert found.first_divergent_block is None or found.first_divergent_block == found.common_tokens // 16
