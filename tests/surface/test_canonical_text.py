"""Equal rendering gives equal canonical text; what the model would see differently differs (S4.4, S8, C25)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.http.canonical import stable_arguments, stable_json
from router.http.endpoints import CHAT, EMBEDDINGS, MESSAGES, RESPONSES, TEXT, Endpoint
from router.http.openai import ApiRequest, parse_for


def parsed(endpoint: Endpoint, **fields: Any) -> ApiRequest:
    return parse_for(endpoint, json.dumps({"model": "m", **fields}).encode())


def chat(content: Any, **fields: Any) -> bytes:
    text = parsed(CHAT, messages=[{"role": "user", "content": content}], **fields).text
    assert text is not None
    return text


def conversation(*messages: dict[str, Any]) -> bytes:
    text = parsed(CHAT, messages=list(messages)).text
    assert text is not None
    return text


TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "d",
        "parameters": {"type": "object", "properties": {"a": {}, "b": {}}},
    },
}
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


def _shuffled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shuffled(item) for key, item in reversed(value.items())}
    return [_shuffled(item) for item in value] if isinstance(value, list) else value


@given(_JSON)
def test_it_spells_equal_json_in_one_way(value: Any) -> None:
    assert stable_json(value) == stable_json(_shuffled(value))
    assert stable_arguments(json.dumps(value, indent=2)) == stable_arguments(json.dumps(_shuffled(value)))


def test_it_ignores_key_order_spacing_and_nulls_of_tools() -> None:
    other = json.loads(json.dumps(_shuffled(TOOL)))
    other["function"]["strict"] = None
    assert chat("a", tools=[TOOL]) == chat("a", tools=[other])
    assert chat("a", tools=[TOOL]) == chat("a", tools=[{"function": TOOL["function"]}])


def test_it_ignores_absent_and_empty_settings() -> None:
    assert chat("a") == chat("a", tools=[], documents=None, chat_template_kwargs={})
    assert chat("a") == chat("a", temperature=0.5, stop=["x"], user="u")


def test_it_keeps_tools_documents_and_their_order() -> None:
    twin = json.loads(json.dumps(TOOL))
    twin["function"]["name"] = "find"
    texts = {
        chat("a"), chat("a", tools=[TOOL]), chat("a", tools=[twin]), chat("a", tools=[TOOL, twin]),
        chat("a", tools=[twin, TOOL]), chat("a", documents=[{"text": "x"}]), chat("a", chat_template="{{ x }}"),
    }  # fmt: skip
    assert len(texts) == 7


def test_it_leaves_out_switches_but_keeps_text_among_template_settings() -> None:
    assert chat("a", chat_template_kwargs={"enable_thinking": False}) == chat("a")
    assert chat("a", chat_template_kwargs={"persona": "x" * 300}) != chat("a")


def test_it_puts_settings_in_front_whatever_the_clients_order() -> None:
    body = (
        b'{"tools":[{"type":"function"}],"model":"m","messages":[{"role":"user","content":"a"}],"documents":[{"t":1}]}'
    )
    other = (
        b'{"documents":[{"t":1}],"messages":[{"role":"user","content":"a"}],"model":"m","tools":[{"type":"function"}]}'
    )
    assert parse_for(CHAT, body).text == parse_for(CHAT, other).text


def test_it_takes_text_parts_as_the_text_they_join_to() -> None:
    assert chat([{"type": "text", "text": "a"}]) == chat("a")
    assert chat([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]) == chat("a\nb")
    assert chat([{"type": "text", "text": "ab"}]) != chat(
        [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    )


def test_it_takes_tool_calls_by_name_and_arguments() -> None:
    def turn(call_id: str, arguments: str) -> bytes:
        call = {"id": call_id, "type": "function", "function": {"name": "look", "arguments": arguments}}
        return conversation(
            {"role": "user", "content": "q"}, {"role": "assistant", "content": None, "tool_calls": [call]}
        )

    assert turn("call_1", '{"a": 1, "b": 2}') == turn("call_2", '{"b":2,"a":1}')
    assert turn("call_1", '{"a": 1}') != turn("call_1", '{"a": 2}')
    assert turn("call_1", "not json") != turn("call_1", "not  json")


def test_it_matches_media_by_content() -> None:
    def image(url: str) -> ApiRequest:
        return parsed(CHAT, messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}])

    assert image("https://a.example/1.png").text == image("https://a.example/1.png").text
    assert image("https://a.example/1.png").text != image("https://a.example/2.png").text
    assert image("https://a.example/1.png").form == "media"


def test_it_fingerprints_token_ids_by_their_bytes() -> None:
    short, long = parsed(TEXT, prompt=[1, 2]), parsed(TEXT, prompt=[1, 2, 300])
    assert short.text and long.text and long.text.startswith(short.text) and len(long.text) == len(short.text) + 4
    assert (short.form, parsed(TEXT, prompt=[[1, 2]]).text) == ("ids", short.text)
    assert parsed(TEXT, prompt=[-1]).text is None and parsed(TEXT, prompt=[2**40]).text is None


def test_it_drops_the_attribution_line_that_the_worker_drops() -> None:
    def system(text: str) -> bytes:
        return conversation({"role": "system", "content": text}, {"role": "user", "content": "q"})

    assert system("x-anthropic-billing-header: a=1;\nBe brief.") == system(
        "x-anthropic-billing-header: a=2;\nBe brief."
    )


def test_it_gives_one_conversation_one_text_on_every_endpoint() -> None:
    messages = [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"}, {"role": "user", "content": "bye"},
    ]  # fmt: skip
    by_chat = parsed(CHAT, messages=messages, tools=[TOOL]).text
    function = TOOL["function"]
    assert isinstance(function, dict)
    anthropic = {"name": "look", "description": "d", "input_schema": function["parameters"]}
    by_messages = parsed(MESSAGES, max_tokens=5, system="Be brief.", messages=messages[1:], tools=[anthropic]).text
    flat = {"type": "function", **function}
    by_responses = parsed(RESPONSES, instructions="Be brief.", input=messages[1:], tools=[flat]).text
    assert by_chat == by_messages == by_responses
    assert parsed(EMBEDDINGS, messages=messages).text == parsed(CHAT, messages=messages).text


@pytest.mark.parametrize(
    ("calls", "result"),
    [
        (
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {"b": 1, "a": 2}}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "42"}]},
        ),
    ],
)
def test_it_takes_tool_use_as_the_chat_it_becomes(calls: dict[str, Any], result: dict[str, Any]) -> None:
    by_messages = parsed(MESSAGES, max_tokens=5, messages=[{"role": "user", "content": "q"}, calls, result]).text
    call = {"id": "z", "type": "function", "function": {"name": "look", "arguments": '{"a":2,"b":1}'}}
    by_chat = conversation(
        {"role": "user", "content": "q"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "z", "content": "42"},
    )
    by_responses = parsed(
        RESPONSES,
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "q"}]},
            {"type": "function_call", "call_id": "c", "name": "look", "arguments": '{"a":2, "b":1}'},
            {"type": "function_call_output", "call_id": "c", "output": "42"},
        ],
    ).text
    assert by_messages == by_chat == by_responses


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text(max_size=12)), min_size=2, max_size=6))
def test_it_continues_a_longer_conversation(turns: list[tuple[str, str]]) -> None:
    messages = [{"role": role, "content": text} for role, text in turns]
    for endpoint, key in ((CHAT, "messages"), (RESPONSES, "input"), (MESSAGES, "messages")):
        extra = {"max_tokens": 1} if endpoint is MESSAGES else {}
        short = parsed(endpoint, **{key: messages[:-1]}, **extra).text
        long = parsed(endpoint, **{key: messages}, **extra).text
        assert short is not None and long is not None and long.startswith(short)
