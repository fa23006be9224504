"""Prompts rendered as vLLM renders them: `recorded/rendered_by_vllm.jsonl` holds the answers of vLLM 0.32's own code.

`text` is None where the worker refuses the request.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from router.adapters.chat_messages import Unrenderable
from router.adapters.chat_template import PROMPT_CHARS_MAX, ChatTemplate

RECORDED = [json.loads(line) for line in (Path(__file__).parent / "recorded" / "rendered_by_vllm.jsonl").open()]
SPECIAL_TOKENS = {"bos_token": "<|bos|>", "eos_token": "<|eos|>", "pad_token": "<|pad|>"}
RECORDED_AT = datetime(2026, 11, 29, 12)

LEFT_OUT = {"the request brings its own chat template", "template arguments that are the worker's own",
            "a content part is not text"}  # fmt: skip
"""Requests a worker may take and that go without a fingerprint here."""


def template(source: str, now: Callable[[], datetime] = lambda: RECORDED_AT, **arguments: Any) -> ChatTemplate:
    return ChatTemplate({"default": source}, special_tokens=SPECIAL_TOKENS, now=now, arguments=arguments)


USER = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("case", RECORDED, ids=range(len(RECORDED)))
def test_it_renders_what_the_worker_renders(case: dict[str, Any]) -> None:
    try:
        rendered = template(case["template"]).render(case["body"])
    except Unrenderable as error:
        assert case["text"] is None or error.reason in LEFT_OUT
    else:
        # What a worker refuses is never cached, whatever it is taken for here.
        assert rendered == case["text"] or case["text"] is None


def test_few_recorded_requests_go_without_a_fingerprint() -> None:
    answered = [case for case in RECORDED if case["text"] is not None]
    left_out = 0
    for case in answered:
        try:
            template(case["template"]).render(case["body"])
        except Unrenderable:
            left_out += 1
    assert len(answered) > 120 and left_out <= 3


def test_defaults_of_the_pool_give_way_to_the_request() -> None:
    shown = template("{{ thinking }}", thinking=True)
    assert shown.render(USER) == "True"
    assert shown.render(USER | {"chat_template_kwargs": {"thinking": False}}) == "False"


def test_tools_choose_the_template_made_for_them() -> None:
    both = ChatTemplate({"default": "plain", "tool_use": "{{ tools | length }}"}, special_tokens={}, now=datetime.now)
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert both.render(USER) == "plain"
    assert both.render(USER | {"tools": tools}) == "1"


def test_the_date_is_the_callers_clock() -> None:
    assert template("{{ strftime_now('%Y-%m-%d') }}", now=lambda: datetime(2031, 2, 3)).render(USER) == "2031-02-03"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('messages[0].content is ' + messages[0].content) }}",
        "{{ messages[0].content.nope.nope }}",
        "{{ messages[0].__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% for a in range(10000000) %}x{% endfor %}",
        "{{ 1 // 0 }}",
    ],
)
def test_a_failing_or_escaping_template_gives_a_reason_without_the_text(source: str) -> None:
    with pytest.raises(Unrenderable) as caught:
        template(source).render({"messages": [{"role": "user", "content": "sesame"}]})
    assert "sesame" not in caught.value.reason


def test_a_prompt_beyond_the_bound_is_not_rendered() -> None:
    endless = template("{% for a in range(99999) %}{{ messages[0].content }}{% endfor %}")
    with pytest.raises(Unrenderable, match="too long"):
        endless.render({"messages": [{"role": "user", "content": "x" * (PROMPT_CHARS_MAX // 90_000)}]})


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"content": "no role"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]}],
        [{"role": "assistant", "tool_calls": [{"type": "custom", "id": "c", "custom": {}}]}],
        [{"role": "assistant", "tool_calls": "calls"}],
        [{"role": "assistant", "tool_calls": [7]}],
        [{"role": "user", "content": 7}],
    ],
)
def test_what_is_no_text_goes_without_a_fingerprint(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(Unrenderable):
        template("{{ messages | tojson }}").render({"messages": messages})


def test_the_request_is_left_as_it_was() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    fields = {
        "messages": [
            {"role": "developer", "content": "d"},
            {"role": "assistant", "content": "x", "tool_calls": [call]},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"b": 1}}}],
    }
    before = json.dumps(fields)
    template("{{ messages | tojson }}{{ tools | tojson }}").render(fields)
    assert json.dumps(fields) == before


def test_a_broken_template_is_refused_at_once() -> None:
    for source in ("{% for %}", "{{ a | no_such_filter }}", "{{"):
        with pytest.raises(ValueError, match="does not compile"):
            template(source)
    with pytest.raises(ValueError, match="no chat template"):
        ChatTemplate({}, special_tokens={}, now=datetime.now)
