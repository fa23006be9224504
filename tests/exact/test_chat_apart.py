"""A conversation that goes on is read from where it was known; the result is the whole prompt's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.adapters.chat_messages import Unrenderable
from router.adapters.chat_raw import last_end, message_ends, messages_behind, raw_messages
from router.adapters.chat_template import ChatTemplate
from router.adapters.tokenizer import Caller, ExactLimits, ExactTokenizer, decode_fields
from router.adapters.tokenizer_files import ModelFiles
from router.contract.ids import TenantId
from router.core.exact.block_hashes import Adapter, BlockHasher
from tests.exact.conftest import SECRET

HASHER = BlockHasher(algorithm="sha256", block_size=4)
ALICE = Caller(TenantId("alice"), "salt-a")
LAB = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
APART = {
    "lab": LAB,
    "first": (
        "{% set turns = messages %}{% for m in turns %}{% set text = '<|' + m['role'] + '|>\n' + m['content'] | trim %}"
        "{% if loop.index0 == 0 %}{% set text = bos_token + text %}{% endif %}{{ text }}<|end|>\n{% endfor %}"
    ),
    "tools": (
        "{% if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif %}{% for m in messages %}<|{{ m.role }}|>"
        "{% if not loop.first %} {% endif %}{{ m.content }}"
        "{% for call in m.tool_calls %}{{ loop.index }}{{ call.function | tojson }}{% endfor %}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is false %}\n\n{% endif %}{% endif %}"
    ),
    "parts": (
        "{% for m in messages %}<|{{ m.role }}|>{% for part in m.content %}{{ part.text }}{% endfor %}"
        "<|end|>{% endfor %}"
    ),
    "no cut": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
    "reset": (
        "{% for m in messages %}{% if m.role == 'user' %}{% set seen = 'U' %}{% endif %}"
        "<|{{ m.role }}|>{{ seen }}{{ m.content }}<|end|>{% endfor %}"
    ),
}
TOGETHER = {
    "place": "{% for m in messages %}{{ loop.index }}{{ m.content }}{% endfor %}",
    "last": "{% for m in messages %}{{ m.content }}{% if not loop.last %}<|end|>{% endif %}{% endfor %}",
    "before": "{% for m in messages %}{{ messages[loop.index0 - 1].role }}{{ m.content }}{% endfor %}",
    "length": "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}",
    "state": (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ m.content }}"
        "{% endfor %}"
    ),
    "cycle": "{% set c = cycler('a', 'b') %}{% for m in messages %}{{ c.next() }}{{ m.content }}{% endfor %}",
    "iterator": (
        "{% set it = ['a', 'b', 'c'] | map('upper') %}"
        "{% for m in messages %}{% for x in it %}{{ x }}{% endfor %}{{ m.content }}{% endfor %}"
    ),
    "changed": "{% for m in messages %}{{ loop.changed(m.role) }}{{ m.content }}{% endfor %}",
    "twice": "{% for m in messages %}{{ m.role }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}",
    "slice": "{% for m in messages[1:] %}{{ m.content }}{% endfor %}",
    "filtered": "{% for m in messages if m.role == 'user' %}{{ loop.first }}{{ m.content }}{% endfor %}",
    "else": "{% for m in messages %}{{ m.content }}{% else %}nothing{% endfor %}",
    "break": "{% for m in messages %}{{ m.content }}{% if m.role == 'tool' %}{% break %}{% endif %}{% endfor %}",
    "date": "{{ strftime_now('%d') }}{% for m in messages %}{{ m.content }}{% endfor %}",
    "macro": "{% macro show(m) %}{{ messages[0].role }}{% endmacro %}{% for m in messages %}{{ show(m) }}{% endfor %}",
    "inside": "{% if tools %}{% for m in messages %}{{ m.content }}{% endfor %}{% endif %}",
    "unpacked": "{% for role, content in messages %}{{ content }}{% endfor %}",
}


def template(source: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, special_tokens={"bos_token": "<|bos|>"}, now=datetime.now)


@pytest.fixture(scope="module")
def tokenizers(model_files: ModelFiles) -> Iterator[dict[str, ExactTokenizer]]:
    made = {
        name: ExactTokenizer(replace(model_files, templates={"default": source}), hasher=HASHER, secret=SECRET)
        for name, source in APART.items()
    }
    yield made
    for tokenizer in made.values():
        tokenizer.close()


def raws(fields: dict[str, Any], *, spaced: bool = False) -> dict[str, bytes]:
    separators = (", ", ": ") if spaced else (",", ":")
    return {
        name: json.dumps(value, ensure_ascii=spaced, separators=separators).encode() for name, value in fields.items()
    }


def plain(exact: ExactTokenizer, fields: dict[str, bytes], caller: Caller) -> tuple[list[int], int] | str:
    """Tokenised whole and hashed whole, without any cache."""
    try:
        ids = exact.token_ids(decode_fields(fields, chat=True), chat=True)
    except Unrenderable as error:
        return error.reason
    return list(HASHER.hashes(ids, salt=caller.salt, adapter=caller.adapter)), len(ids)


async def read(exact: ExactTokenizer, fields: dict[str, bytes], caller: Caller) -> tuple[list[int], int] | str:
    try:
        prefix = await exact.finish(exact.prepare_chat(caller, fields))
    except Unrenderable as error:
        return error.reason
    return list(prefix.hashes), prefix.tokens


TEXTS = st.one_of(
    st.text(alphabet='ab é中😀\n"\\<|end>\t', max_size=30),
    st.sampled_from(
        [
            "<|end|>",
            "<|user|>x",
            "<|en",
            "d|>",
            "]",
            '"},{"role":"user"',
            "word " * 500,
            "long é " * 2500,
            "<|end|>" * 40,
        ]
    ),
)
CALLS = st.just([{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"b": 1, "a": [2]}'}}])
MESSAGES = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system", "developer"]), "content": TEXTS}),
    st.fixed_dictionaries(
        {"role": st.just("user"), "content": TEXTS.map(lambda text: [{"type": "text", "text": text}])}
    ),
    st.fixed_dictionaries({"role": st.just("assistant"), "content": st.none(), "tool_calls": CALLS}),
    st.fixed_dictionaries({"role": st.just("tool"), "content": TEXTS, "tool_call_id": st.just("c")}),
)
BESIDE = st.fixed_dictionaries(
    {},
    optional={
        "tools": st.sampled_from([[{"type": "function", "function": {"name": name}}] for name in "fg"]),
        "add_generation_prompt": st.booleans(),
        "reasoning_effort": st.sampled_from(["none", "low"]),
        "continue_final_message": st.booleans(),
        "add_special_tokens": st.booleans(),
        "chat_template_kwargs": st.sampled_from([{"bos_token": "<|eos|>"}, {"x": 1.50}]),
    },
)
CALLERS = st.sampled_from(
    [ALICE, ALICE, ALICE, replace(ALICE, salt="other"), replace(ALICE, adapter=Adapter("lora", "/lora")),
     Caller(TenantId("bob"), "salt-b")]
)  # fmt: skip


@pytest.mark.parametrize("name", APART)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_a_conversation_read_in_turns_is_the_one_read_whole(
    tokenizers: dict[str, ExactTokenizer], name: str, data: st.DataObject
) -> None:
    exact = tokenizers[name]
    messages = data.draw(st.lists(MESSAGES, min_size=1, max_size=4))
    beside, caller, spaced = data.draw(BESIDE), data.draw(CALLERS), data.draw(st.booleans())
    for _ in range(data.draw(st.integers(2, 5))):
        fields = raws({"messages": messages, **beside}, spaced=spaced)
        assert await read(exact, fields, caller) == plain(exact, fields, caller)
        act = data.draw(
            st.sampled_from(["goes on", "goes on", "goes on", "edit", "shorter", "beside", "caller", "spaces"])
        )
        if act == "goes on":
            messages = [*messages, *data.draw(st.lists(MESSAGES, max_size=2))]
        elif act == "edit":
            place = data.draw(st.integers(0, len(messages) - 1))
            messages = [*messages[:place], data.draw(MESSAGES), *messages[place + 1 :]]
        elif act == "shorter":
            messages = messages[: data.draw(st.integers(1, len(messages)))]
        elif act == "beside":
            beside = data.draw(BESIDE)
        elif act == "caller":
            caller = data.draw(CALLERS)
        else:
            spaced = not spaced


@pytest.mark.parametrize("source", APART.values(), ids=APART)
@settings(max_examples=20, deadline=None)
@given(messages=st.lists(MESSAGES, min_size=1, max_size=5), at=st.integers(1, 5))
def test_pieces_are_the_whole_text(source: str, messages: list[dict[str, Any]], at: int) -> None:
    rendering = template(source)
    try:
        whole = rendering.render({"messages": messages})
    except Unrenderable:
        return
    pieces = rendering.render_apart({"messages": messages})
    if pieces is None:
        assert any(message["role"] == "developer" for message in messages)
        return
    assert "".join(pieces) == whole
    assert len(pieces) == len(messages) + 2
    assert rendering.render_further({}, messages[at:]) == pieces[min(at, len(messages)) + 1 :]


@pytest.mark.parametrize("source", TOGETHER.values(), ids=TOGETHER)
def test_messages_that_depend_on_each_other_are_rendered_together(source: str) -> None:
    rendering = template(source)
    assert not rendering.any_apart
    assert rendering.render_apart({"messages": [{"role": "user", "content": "a"}]}) is None
    assert rendering.render_further({}, [{"role": "user", "content": "a"}]) is None


VERBATIM = {
    "lab": LAB,
    "joined": "{% for m in messages %}{{ '<|' + m.role + '|>' ~ (m.content + '<|end|>') }}{% endfor %}",
    "by role": "{% for m in messages %}{% if m['role'] == 'user' %}U:{% endif %}{{ m['content'] }}{% endfor %}",
    "twice": "{% for m in messages %}{{ m.content }}|{{ m.content }}{% if loop.first %}!{% endif %}{% endfor %}",
}
LOOKED_AT = {
    "asked": "{% for m in messages %}{% if m.content %}x{% endif %}{{ m.content }}{% endfor %}",
    "filtered": "{% for m in messages %}{{ m.content | trim }}{% endfor %}",
    "cut": "{% for m in messages %}{{ m.content[:3] }}{% endfor %}",
    "compared": "{% for m in messages %}{{ m.content == 'a' }}{% endfor %}",
    "chosen": "{% for m in messages %}{{ m.content if m.role == 'user' else m.content | upper }}{% endfor %}",
    "named": "{% for m in messages %}{% set c = m.content %}{{ c | upper }}{% endfor %}",
    "whole": "{% for m in messages %}{{ m | tojson }}{% endfor %}",
    "computed": "{% for m in messages %}{% set k = 'content' %}{{ m[k] | upper }}{% endfor %}",
    "method": "{% for m in messages %}{{ m.get('content') | upper }}{% endfor %}",
    "values": "{% for m in messages %}{% for v in m.values() %}{{ v | upper }}{% endfor %}{% endfor %}",
    "renamed": "{% for m in messages %}{% set n = m %}{{ n.content | upper }}{% endfor %}",
    "method of it": "{% for m in messages %}{{ m.content.upper() }}{% endfor %}",
}


@pytest.mark.parametrize("source", [*VERBATIM.values(), *LOOKED_AT.values()], ids=[*VERBATIM, *LOOKED_AT])
@settings(max_examples=20, deadline=None)
@given(texts=st.lists(TEXTS, max_size=4))
def test_a_text_is_put_into_what_was_rendered_around_another(source: str, texts: list[str]) -> None:
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(["first", *texts])]
    rendering = template(source)
    assert bool(rendering._frames) == (source in VERBATIM.values())
    for at in range(1, len(messages) + 1):
        pieces = rendering.render_apart({"messages": messages})
        assert pieces is not None
        assert rendering.render_further({}, messages[at:]) == pieces[at + 1 :]


class Counted:
    """Stands in for a tokenizer's template: counts the messages that it renders."""

    def __init__(self, of: ChatTemplate) -> None:
        self.of, self.rendered = of, 0
        self.any_apart = of.any_apart

    def render_apart(self, fields: dict[str, Any]) -> list[str] | None:
        self.rendered += len(fields["messages"])
        return self.of.render_apart(fields)

    def render_further(self, fields: dict[str, Any], messages: list[dict[str, Any]]) -> list[str] | None:
        self.rendered += len(messages)
        return self.of.render_further(fields, messages)


def turns(count: int, head: str = "word " * 4000) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": "system", "content": head}] + [
        {"role": roles[n % 2], "content": f"turn {n}"} for n in range(count)
    ]


@pytest.fixture
def counted(model_files: ModelFiles) -> Iterator[tuple[ExactTokenizer, Counted]]:
    exact = ExactTokenizer(model_files, hasher=HASHER, secret=SECRET)
    assert exact.template is not None
    template = exact._template = Counted(exact.template)  # type: ignore[assignment]
    yield exact, template  # type: ignore[misc]
    exact.close()


async def test_only_what_is_new_of_a_conversation_is_rendered(counted: tuple[ExactTokenizer, Counted]) -> None:
    exact, template = counted
    for count, rendered in ((1, 2), (3, 2), (5, 2), (5, 0), (65, 60)):
        template.rendered = 0
        await read(exact, raws({"messages": turns(count)}), ALICE)
        assert template.rendered == rendered, count


async def test_another_conversation_under_a_known_head_renders_its_own_messages(
    counted: tuple[ExactTokenizer, Counted],
) -> None:
    exact, template = counted
    await read(exact, raws({"messages": turns(1)}), ALICE)
    for number in range(20):
        template.rendered = 0
        messages = [*turns(0), {"role": "user", "content": "q" * number}]
        await read(exact, raws({"messages": messages}), ALICE)
        assert template.rendered == 1, number


async def test_no_tenant_finds_what_another_sent(counted: tuple[ExactTokenizer, Counted]) -> None:
    exact, template = counted
    await read(exact, raws({"messages": turns(3)}), ALICE)
    for other in (Caller(TenantId("charlie"), "salt-a"), replace(ALICE, salt="rotated")):
        template.rendered = 0
        await read(exact, raws({"messages": turns(3)}), other)
        assert template.rendered == 4


async def test_heads_are_within_the_bound_of_known_prompts(model_files: ModelFiles) -> None:
    limits = ExactLimits(chains_bytes_max=400_000, segments_bytes_max=400_000)
    exact = ExactTokenizer(model_files, hasher=HASHER, secret=SECRET, limits=limits)
    for number in range(400):
        await read(exact, raws({"messages": turns(number % 7, f"head {number % 90}")}), ALICE)
        assert exact.bytes_used < 900_000
    exact.close()


@given(
    st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=9), min_size=1, max_size=3), min_size=1),
    st.integers(0, 3),
)
def test_messages_end_where_their_json_does(messages: list[dict[str, str]], spaces: int) -> None:
    gap = " " * spaces
    raw = memoryview(json.dumps(messages, separators=(f"{gap},{gap}", ":")).replace("[", f"[{gap}", 1).encode())
    ends = message_ends(raw)
    assert [messages_behind(raw, end) for end in ends] == [messages[place + 1 :] for place in range(len(messages))]
    assert last_end(raw) == ends[-1]
    assert raw_messages({"messages": bytes(raw)}) == raw
