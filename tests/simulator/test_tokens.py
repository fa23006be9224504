from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from simulator.tokens import BYTES_PER_TOKEN, VOCABULARY_SIZE, render_chat, spoken_text, spoken_token, tokenize


@given(st.text(max_size=200), st.text(max_size=50), st.text(max_size=50))
def test_it_gives_equal_prefixes_equal_tokens(common: str, left: str, right: str) -> None:
    whole = len(common.encode()) // BYTES_PER_TOKEN
    assert tokenize(common + left)[:whole] == tokenize(common + right)[:whole]


@given(st.text(max_size=200))
def test_it_counts_four_bytes_a_token(text: str) -> None:
    tokens = tokenize(text)
    assert len(tokens) == -(-len(text.encode()) // BYTES_PER_TOKEN)
    assert all(0 <= token < VOCABULARY_SIZE for token in tokens)


def test_it_tokenises_its_own_answer_back_to_the_same_ids() -> None:
    answer = [spoken_token(7, position) for position in range(200)]
    assert tokenize(spoken_text(answer)) == answer
    assert len(set(answer)) > 50


def test_it_renders_the_next_turn_as_a_continuation_of_prompt_and_answer() -> None:
    prompt = render_chat([("system", "be brief"), ("user", "hello")])
    answer = [spoken_token(1, position) for position in range(8)]
    following = render_chat(
        [("system", "be brief"), ("user", "hello"), ("assistant", spoken_text(answer)), ("user", "more")]
    )
    assert following[: len(prompt) + len(answer)] == prompt + answer


def test_it_tells_a_short_tail_from_the_same_text_padded() -> None:
    assert tokenize("abc") != tokenize("abc\0")
