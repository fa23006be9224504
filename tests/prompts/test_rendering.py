"""Rendering: static, semi-static, dynamic, and one spelling for equal values (S0.5, S4.4)."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.errors import Invalid
from controlplane.prompts.rendering import names_in, render, serialised

SEGMENTS = [
    {"kind": "static", "name": "rules", "text": "Rules."},
    {"kind": "static", "name": "tools", "text": "{tools}"},
    {"kind": "semi_static", "name": "topic", "text": "Topic: {topic}"},
    {"kind": "dynamic", "name": "turn", "text": "{question}"},
]
TOOLS = [
    {"type": "function", "function": {"name": "b", "parameters": {"z": 1, "a": 2}}},
    {"type": "function", "function": {"parameters": {}, "name": "a"}},
]


def test_segments_come_in_the_order_that_caches() -> None:
    shuffled = [SEGMENTS[3], SEGMENTS[2], SEGMENTS[0], SEGMENTS[1]]
    values = {"tools": "T", "topic": "pumps", "question": "Why?"}
    assert render(shuffled, values).text == render(SEGMENTS, values).text == "Rules.\nT\nTopic: pumps\nWhy?"


def test_parts_know_where_they_begin() -> None:
    rendered = render(SEGMENTS, {"tools": [], "topic": "t", "question": "q"})
    for part in rendered.parts:
        assert rendered.text[part.start : part.start + len(part.text)] == part.text


def test_tools_are_sorted_by_name_and_keys_too() -> None:
    text = serialised(TOOLS)
    assert text == serialised(list(reversed(TOOLS)))
    assert [tool["function"]["name"] for tool in json.loads(text)] == ["a", "b"]
    assert text.index('"a":2') < text.index('"z":1')


def test_the_order_of_other_lists_is_their_meaning() -> None:
    assert serialised([2, 1, {"name": "b"}, {"name": "a"}]) == '[2,1,{"name":"b"},{"name":"a"}]'


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
        max_leaves=12,
    ),
    st.randoms(use_true_random=False),
)
def test_equal_values_give_equal_text_whatever_their_order(value: object, rng: random.Random) -> None:
    assert serialised(_shuffled(value, rng)) == serialised(value)


def _shuffled(value: object, rng: random.Random) -> object:
    if isinstance(value, dict):
        items = list(value.items())
        rng.shuffle(items)
        return {key: _shuffled(item, rng) for key, item in items}
    return [_shuffled(item, rng) for item in value] if isinstance(value, list) else value


def test_doubled_braces_stand_for_themselves_and_json_is_no_placeholder() -> None:
    segments = [{"kind": "static", "name": "a", "text": 'Write {{name}} or {"name": 1}, not {name}.'}]
    assert names_in(segments) == {"name"}
    assert render(segments, {"name": "Ada"}).text == 'Write {name} or {"name": 1}, not Ada.'


def test_a_value_is_not_searched_for_placeholders() -> None:
    assert render([{"kind": "dynamic", "name": "a", "text": "{q}"}], {"q": "{secret}"}).text == "{secret}"


def test_missing_and_unknown_values_are_named() -> None:
    with pytest.raises(Invalid) as caught:
        render(SEGMENTS, {"tools": "T", "question": "q", "colour": "red"})
    assert [error["field"] for error in caught.value.errors] == ["values.colour", "values.topic"]


def test_a_value_that_is_asked_for_very_often_is_refused_before_it_is_written() -> None:
    segments = [{"kind": "static", "name": "a", "text": "{v}" * 300_000}]
    with pytest.raises(Invalid, match="4,000,000 characters"):
        render(segments, {"v": "x" * 900_000})
    assert len(render(segments, {"v": "x" * 10}).text) == 3_000_000
