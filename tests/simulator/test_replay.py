"""Generated text shares prefixes exactly where the trace's block ids do."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from simulator.prose import block_text, seed_of
from simulator.replay import (
    ChatTurn,
    WekaTurn,
    conversation_chat,
    load_conversation,
    load_weka,
    weka_chat,
)
from simulator.script import SessionScript, weighted_choice
from simulator.tokens import tokenize


@pytest.fixture(scope="module")
def weka() -> list[list[WekaTurn]]:
    return load_weka()


def text(turn: ChatTurn) -> str:
    return turn.messages[0]["content"] + turn.messages[1]["content"]


def common(left: str, right: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def test_it_gives_equal_ids_equal_text_and_others_different() -> None:
    ids = np.arange(20_000, dtype=np.uint64)
    words = block_text(seed_of("a"), ids, bytes_per_block=16)
    blocks = [words[i : i + 16] for i in range(0, len(words), 16)]
    assert len(set(blocks)) == len(ids)
    assert block_text(seed_of("a"), ids[5:6], bytes_per_block=16) == blocks[5]
    assert block_text(seed_of("b"), ids[5:6], bytes_per_block=16) != blocks[5]
    assert len(block_text(seed_of("a"), ids[:3], bytes_per_block=200)) == 600


def test_it_follows_the_traces_block_ids_within_a_session(weka: list[list[WekaTurn]]) -> None:
    compared = 0
    for session in weka[:6]:
        for before, after in itertools.pairwise(session[:13]):
            left, right = _ids(before), _ids(after)
            shared = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), None)
            shared = min(len(left), len(right)) if shared is None else shared
            head = (before.tool_tokens + before.system_tokens) // 64
            if min(len(left), len(right)) <= head:
                continue
            letters = common(*(text(weka_chat(t, generation=0, seed=1)) for t in (before, after)))
            assert letters // 16 == max(shared, head)
            compared += 1
    assert compared > 30


def test_it_shares_heads_of_equal_lengths_and_nothing_else_between_sessions(weka: list[list[WekaTurn]]) -> None:
    by_head: dict[tuple[int, int], list[WekaTurn]] = {}
    for session in weka:
        by_head.setdefault((session[0].tool_tokens, session[0].system_tokens), []).append(session[-1])
    (tools, system), sharing = max(by_head.items(), key=lambda item: len(item[1]))
    one, two = (weka_chat(turn, generation=0, seed=1) for turn in sharing[:2])
    assert one.messages[0] == two.messages[0]
    assert len(one.messages[0]["content"]) == (tools + system) // 64 * 16
    assert common(one.messages[1]["content"], two.messages[1]["content"]) < 16


def test_it_plays_a_repeated_session_as_another_one(weka: list[list[WekaTurn]]) -> None:
    turn = weka[0][0]
    first, again = (weka_chat(turn, generation=generation, seed=1) for generation in (0, 1))
    assert first.session != again.session
    assert first.messages[0] == again.messages[0]
    assert common(first.messages[1]["content"], again.messages[1]["content"]) < 16
    assert weka_chat(turn, generation=0, seed=1) == first


def test_it_scales_lengths(weka: list[list[WekaTurn]]) -> None:
    turn = weka[0][0]
    tokens = len(tokenize(text(weka_chat(turn, generation=0, seed=1, scale=1 / 16))))
    assert tokens == pytest.approx(turn.input_length / 16, rel=0.01)
    assert len(tokenize(text(weka_chat(turn, generation=0, seed=1, scale=1 / 8)))) == 2 * tokens


def test_it_shares_block_0_between_all_conversations() -> None:
    requests = load_conversation()
    assert len(requests) == 4_000
    one, two = (conversation_chat(request, generation=0, seed=1) for request in requests[:2])
    assert one.messages[0] == two.messages[0]
    assert one.messages[1] != two.messages[1]
    assert one.session == ""


def test_it_deals_every_session_before_it_starts_over() -> None:
    sessions = [[WekaTurn(n, 0, 64, 1, 0, 0, [(1, 1)])] for n in range(5)]
    script = SessionScript(sessions, seed=3)
    plays = [script.next() for _ in range(10)]
    assert sorted(play.turns[0].session for play in plays[:5]) == list(range(5))
    assert [play.generation for play in plays] == [0] * 5 + [1] * 5
    with pytest.raises(ValueError, match="no sessions"):
        SessionScript([], seed=1)


def test_it_shares_sessions_out_by_weight_and_sticks_to_it() -> None:
    choices = [weighted_choice([0.75, 0.25, 0.0], key=f"s{n}") for n in range(400)]
    assert choices.count(2) == 0
    assert 60 <= choices.count(1) <= 140
    assert choices == [weighted_choice([0.75, 0.25, 0.0], key=f"s{n}") for n in range(400)]


def _ids(turn: WekaTurn) -> list[int]:
    return [first + i for first, count in turn.hash_runs for i in range(count)]
