"""The short cut for plain chat requests gives what the strict reader gives, or stands aside."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.http import openai
from router.http.endpoints import CHAT
from router.http.errors import BadRequest
from router.http.plain_chat import PLAIN_BYTES_MAX, read_plain
from router.http.plain_fields import PlainFields

_text = st.text(alphabet=st.characters(codec="ascii"), max_size=40) | st.sampled_from(
    ['"model":', "x-anthropic-billing-header: 1\nrest"]
)
_message = st.fixed_dictionaries(
    {"role": st.sampled_from(("system", "user", "assistant", "developer")), "content": _text | st.none()},
    optional={"name": st.just("n")},
)
_body = st.fixed_dictionaries(
    {"model": _text, "messages": st.lists(_message, max_size=4)},
    optional={
        "max_tokens": st.integers(-1, 10) | st.none(),
        "max_completion_tokens": st.integers(-1, 10) | st.none(),
        "temperature": st.floats(-2, 2) | st.just("hot"),
        "seed": st.integers(-(2**65), 2**65),
        "stream": st.booleans() | st.none() | st.just(1),
        "user": _text,
        "cache_salt": st.just("theirs"),
        "tools": st.just([]),
    },
)


@given(_body, st.sampled_from((",", ", ")))
def test_it_agrees_with_the_strict_reader(fields: dict, comma: str) -> None:
    body = json.dumps(fields, separators=(comma, ":")).encode()
    plain = read_plain(body)
    if plain is None:
        return
    strict = openai.parse_for(CHAT, body)
    for name in ("model", "text", "form", "stream", "wants_usage", "user", "max_tokens"):
        assert getattr(plain, name) == getattr(strict, name), name
    sent = [openai.upstream_body(each, salt="ours", unknown_fields="drop") for each in (plain, strict)]
    assert json.loads(sent[0]) == json.loads(sent[1])
    assert sent[0].count(b'"cache_salt"') == 1


def test_it_takes_the_plain_request() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"say \\"model\\": hi"}],"max_tokens":5,"stream":true}'
    plain = read_plain(body)
    assert plain is not None and plain.stream and plain.max_tokens == 5
    sent = json.loads(openai.upstream_body(plain, salt="s", unknown_fields="reject"))
    assert sent["stream_options"] == {"include_usage": True} and sent["cache_salt"] == "s"


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"a","model":"b","messages":[{"role":"user","content":"x"}]}',
        b'{"model":"a","model" : "b","messages":[{"role":"user","content":"x"}]}',
        b'{"model":"a","mod\\u0065l":"b","messages":[{"role":"user","content":"x"}]}',
        b'{"model":"a","messages":[{"role":"user","content":"x"}],"max_tokens":1,"max_tokens":2}',
        b'{"model":"a","messages":[{"role":"user","content":"x"}],"cache_salt":"theirs"}',
        b'{"model":"a","messages":[{"role":"user","content":"x"}],"cache\\u005fsalt":"theirs"}',
        b'{"model":"a","messages":[{"role":"user","content":"x","tool_calls":[]}]}',
        b'{"model":"a","messages":[{"role":"user","content":"\xc3\xa4"}]}',
        b'{"model":"a","messages":[{"role":"user","content":"%b"}]}' % (b"x" * PLAIN_BYTES_MAX),
        b'{"model":"a","messages":[{"role":"user","content":"x"}]} ',
        b'{"model": "a","messages":[{"role":"user","content":"x"}]}',
        b' {"model":"a","messages":[{"role":"user","content":"x"}]}',
        b'{"model":"a","messages":[]}',
        b'{"model":"a"}',
        b"[]",
        b"{",
    ],
)
def test_it_leaves_the_rest_to_the_strict_reader(body: bytes) -> None:
    assert read_plain(body) is None


@pytest.mark.parametrize("name", PlainFields.__struct_fields__)
def test_it_takes_no_key_twice(name: str) -> None:
    values = {
        "model": '"m"',
        "messages": '[{"role":"user","content":"x"}]',
        "stream": "true",
    }
    once = {key: values.get(key, "1") for key in PlainFields.__struct_fields__}
    fields = [f'"{key}":{value}' for key, value in once.items()]
    assert read_plain(f"{{{','.join(fields)}}}".encode()) is not None
    assert read_plain(f"{{{','.join([*fields, f'"{name}":{once[name]}'])}}}".encode()) is None


def test_the_strict_reader_names_the_fault() -> None:
    with pytest.raises(BadRequest, match="max_tokens"):
        openai.parse_for(CHAT, b'{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":-1}')
