"""`/v1/messages` and `/v1/responses` as the chats that a worker makes of them.

`recorded/chats_by_vllm.jsonl` holds what vLLM 0.32's own code made of each body, `chat` None where it refuses it.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.adapters.chat_messages import Unrenderable
from router.adapters.chat_template import ChatTemplate
from router.adapters.exact_dialects import Dialects
from router.adapters.exact_messages import MESSAGES_FIELDS, chat_of_messages
from router.adapters.exact_responses import RESPONSES_FIELDS, chat_of_responses

RECORDED = [json.loads(line) for line in (Path(__file__).parent / "recorded" / "chats_by_vllm.jsonl").open()]
SHOWS_ALL = "{{ messages | tojson }}{{ tools | tojson }}{{ reasoning_effort }}{{ enable_thinking }}{{ x }}"
LEFT_OUT = {
    "a content block is not text", "a tool result is not text", "a system message is not text",
    "a tool call gets its id from the worker's clock", "the final message is continued", "a content part is not text",
    "an item is of another kind", "the prompt is truncated by the worker",
}  # fmt: skip
"""Requests a worker may take and that go without a fingerprint here."""


def template(source: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, special_tokens={}, now=lambda: datetime(2026, 1, 1))


def ours(case: dict[str, Any]) -> dict[str, Any]:
    if case["kind"] == "responses":
        return chat_of_responses(case["body"])
    return chat_of_messages(case["body"], merges_system=case["merges"], disabled_effort=case["disabled"])


@pytest.mark.parametrize("case", RECORDED, ids=range(len(RECORDED)))
def test_it_makes_the_chat_that_the_worker_makes(case: dict[str, Any]) -> None:
    shown = template(SHOWS_ALL)
    try:
        rendered = shown.render(ours(case))
    except Unrenderable as error:
        assert case["chat"] is None or error.reason in LEFT_OUT
    else:
        # What a worker refuses is never cached, whatever it is taken for here.
        assert case["chat"] is None or rendered == shown.render(case["chat"])


def test_few_recorded_requests_go_without_a_fingerprint() -> None:
    taken = [case for case in RECORDED if case["chat"] is not None]
    left_out = 0
    for case in taken:
        try:
            ours(case)
        except Unrenderable:
            left_out += 1
    assert len(taken) > 70 and left_out <= 16


@pytest.mark.parametrize(
    ("source", "merges"),
    [
        ("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", False),
        ("{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}"
         "{{ m.content }}{% endfor %}", True),
        ("{% generation %}{% endgeneration %}", True),
    ],
)  # fmt: skip
def test_a_template_that_refuses_system_messages_amid_others_has_them_joined(source: str, merges: bool) -> None:
    dialects = Dialects(template(source))
    assert dialects.merges_system == merges
    amid = {"role": "system", "content": "note"}
    user = {"role": "user", "content": "hi"}
    raws = {"messages": json.dumps([user, amid, user]).encode(), "system": b'"top"'}
    chat, is_chat = dialects.decode(raws, "messages")
    top = {"role": "system", "content": "topnote" if merges else "top"}
    assert is_chat and chat["messages"] == [top, user, *([] if merges else [amid]), user]


@pytest.mark.parametrize(
    ("source", "effort"),
    [
        ("no word of it", "low"),
        ("{{ enable_thinking }}", "none"),
        ("{{ 'x' if reasoning_effort in ('none', 'max') }}", "low"),
        ("{{ raise_exception('no') if reasoning_effort == 'none' }}", "low"),
    ],
)
def test_thinking_disabled_is_the_effort_that_the_template_tells_apart(source: str, effort: str) -> None:
    assert Dialects(template(source)).disabled_effort == effort


_Json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "role", "content", "text", "id", "input", "name", "thinking", "summary", "effort"]
            ),
            inner | st.sampled_from(["text", "user", "assistant", "tool_use", "tool_result", "message", "reasoning"]),
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.sampled_from(["messages", "responses"]), st.data())
def test_whatever_a_client_sends_is_a_chat_or_refused(kind: str, data: st.DataObject) -> None:
    names = MESSAGES_FIELDS if kind == "messages" else RESPONSES_FIELDS
    fields = data.draw(st.dictionaries(st.sampled_from(names), _Json))
    raws = {name: json.dumps(value).encode() for name, value in fields.items()}
    shown = template(SHOWS_ALL)
    try:
        chat, _ = Dialects(shown).decode(raws, kind)
        shown.render(chat)
    except Unrenderable as error:
        assert error.reason
