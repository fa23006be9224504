"""Exactly one salt, ours; known fields byte for byte; unknown ones by policy; wrong ones refused by name (S2, S3)."""

from __future__ import annotations

import json

import pytest

from router.http import openai
from router.http.errors import BadRequest
from router.http.fields import NEVER_FORWARDED
from tests.router.conftest import ALICE_SALT, RunningRouter, StartRouter, chat, snapshot_for
from tests.router.scripted_worker import ScriptedWorker

MESSAGES = b'"messages":[{"role":"user","content":"hi"}]'


@pytest.mark.parametrize(
    "extra",
    [
        b'"cache_salt":"evil"',
        b'"cache_salt":"evil","cache_salt":"evil"',
        b'"cache\\u005fsalt":"evil"',
        b'"\\u0063ache_salt":null',
        b'"extra_body":{"cache_salt":"evil"}',
        b'"request_id":"evil","priority":9,"kv_transfer_params":{"remote_host":"10.0.0.1","cache_salt":"evil"}',
    ],
)
async def test_it_sends_exactly_one_salt_and_it_is_ours(
    router: RunningRouter, worker: ScriptedWorker, extra: bytes
) -> None:
    answer = await router.post(b'{"model":"m",' + extra + b"," + MESSAGES + b"}")
    assert answer.status_code == 200
    sent = worker.asked[0].body
    assert sent.count(b"salt") == 1 and b"evil" not in sent
    assert worker.asked[0].json["cache_salt"] == ALICE_SALT


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "hi", "cache_salt": "evil"}],
        [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_salt": "evil"}]}],
    ],
)
async def test_it_takes_salts_out_of_messages(
    router: RunningRouter, worker: ScriptedWorker, messages: list[dict]
) -> None:
    assert (await router.post({"model": "m", "messages": messages})).status_code == 200
    assert worker.asked[0].body.count(b"cache_salt") == 1
    assert worker.asked[0].json["messages"][0]["role"] == "user"


@pytest.mark.parametrize("policy", ["drop", "pass"])
@pytest.mark.parametrize("field", sorted(NEVER_FORWARDED))
async def test_it_never_forwards(start_router: StartRouter, worker: ScriptedWorker, policy: str, field: str) -> None:
    parsed = openai.parse(json.dumps({**chat(), field: "evil"}).encode(), chat=True)
    body = json.loads(openai.upstream_body(parsed, salt="ours", unknown_fields=policy))
    assert body == {**chat(), "cache_salt": "ours"}


@pytest.mark.parametrize(
    ("policy", "status", "arrives"), [("drop", 200, False), ("pass", 200, True), ("reject", 400, False)]
)
async def test_it_treats_unknown_fields_by_the_namespaces_policy(
    start_router: StartRouter, worker: ScriptedWorker, policy: str, status: int, arrives: bool
) -> None:
    router = await start_router(snapshot_for([worker.url], unknown_fields=policy))
    answer = await router.post({**chat(), "brand_new": {"a": 1}})
    assert answer.status_code == status
    if status == 400:
        assert answer.json()["error"]["param"] == "brand_new"
    else:
        assert ("brand_new" in worker.asked[0].json) is arrives


async def test_it_forwards_documented_fields_byte_for_byte(router: RunningRouter, worker: ScriptedWorker) -> None:
    fields = (
        b'"temperature": 0.70, "top_k":5,"min_p":1e-3, "tools":[ {"type":"function","function":{"name":"f",'
        b'"parameters":{"properties":{"cache_salt":{}}}}}],"response_format":{"type":"json_object"},'
        b'"chat_template_kwargs":{"x":true},"logit_bias":{"1":-100},"stop":["a","b"],"metadata":{"k":"v"}'
    )
    answer = await router.post(b'{"model":"m",' + fields + b"," + MESSAGES + b"}")
    assert answer.status_code == 200
    for value in (b"0.70", b"1e-3", b'[ {"type":"function"'):
        assert value in worker.asked[0].body
    sent = json.loads(b"{" + fields + b"}")
    assert {name: worker.asked[0].json[name] for name in sent} == sent


async def test_it_keeps_the_other_stream_options(router: RunningRouter, worker: ScriptedWorker) -> None:
    await router.post(chat(stream=True, stream_options={"continuous_usage_stats": True, "include_usage": True}))
    assert worker.asked[0].json["stream_options"] == {"continuous_usage_stats": True, "include_usage": True}


BAD_BODIES = {
    "empty": (b"", None),
    "not JSON": (b"{", None),
    "trailing garbage": (b'{"model":"m"} x', None),
    "null": (b"null", None),
    "list": (b"[]", None),
    "invalid UTF-8": (b'{"model":"m","messages":[{"role":"user","content":"\xff"}]}', None),
    "NaN": (b'{"model":"m","temperature":NaN,' + MESSAGES + b"}", None),
    "1e400": (b'{"model":"m","temperature":1e400,' + MESSAGES + b"}", "temperature"),
    "5,000 digits": (b'{"model":"m","seed":' + b"9" * 5000 + b"," + MESSAGES + b"}", "seed"),
    "lone surrogate": (b'{"model":"m","messages":[{"role":"user","content":"\\ud800 x"}]}', None),
    "deep": (b'{"model":"m","tools":' + b"[" * 65 + b"]" * 65 + b"," + MESSAGES + b"}", "tools"),
    "very deep": (b'{"model":"m","tools":' + b"[" * 200_000 + b"]" * 200_000 + b"}", None),
    "deep schema": (
        b'{"model":"m","response_format":' + b'{"a":' * 40 + b"1" + b"}" * 40 + b"," + MESSAGES + b"}",
        "response_format",
    ),
    "no model": (b"{" + MESSAGES + b"}", "model"),
    "model of another type": (b'{"model":5,' + MESSAGES + b"}", "model"),
    "no messages": (b'{"model":"m"}', "messages"),
    "empty messages": (b'{"model":"m","messages":[]}', "messages"),
    "messages of another type": (b'{"model":"m","messages":"hi"}', "messages"),
    "message without role": (b'{"model":"m","messages":[{"content":"hi"}]}', "messages"),
    "content of another type": (b'{"model":"m","messages":[{"role":"user","content":5}]}', "messages"),
    "part without type": (b'{"model":"m","messages":[{"role":"user","content":[{"text":"x"}]}]}', "messages"),
    "n": (b'{"model":"m","n":1000000000,' + MESSAGES + b"}", "n"),
    "stream of another type": (b'{"model":"m","stream":"yes",' + MESSAGES + b"}", "stream"),
    "long regex": (b'{"model":"m","guided_regex":"' + b"a" * 70_000 + b'",' + MESSAGES + b"}", "guided_regex"),
    "file image": (
        b'{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":'
        b'{"url":"file:///etc/passwd"}}]}]}',
        "messages",
    ),
    "link-local image": (
        b'{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":'
        b'{"url":"http://169.254.169.254/latest"}}]}]}',
        "messages",
    ),
    "a million messages": (
        b'{"model":"m","messages":[' + b",".join([b'{"role":"user","content":""}'] * 1_000_000) + b"]}",
        "messages",
    ),
}


@pytest.mark.parametrize("name", BAD_BODIES)
async def test_it_answers_400_naming_the_field(router: RunningRouter, worker: ScriptedWorker, name: str) -> None:
    body, param = BAD_BODIES[name]
    answer = await router.post(body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert error["param"] == param
    assert worker.connections == 0
    assert (await router.post(chat())).status_code == 200


@pytest.mark.parametrize("prompt", ["text", ["text"], ["a", "b"], [1, 2, 3], [[1, 2], [3]], "", " "])
async def test_it_takes_every_form_of_prompt(router: RunningRouter, worker: ScriptedWorker, prompt: object) -> None:
    answer = await router.post({"model": "m", "prompt": prompt}, path="/v1/completions")
    assert answer.status_code == 200
    assert worker.asked[0].json["prompt"] == prompt


@pytest.mark.parametrize("prompt", [None, 5, [], ["a"] * 17, ["a", 1], [[]], [[1, "a"]], {"a": 1}])
async def test_it_refuses_other_prompts(prompt: object) -> None:
    with pytest.raises(BadRequest) as refused:
        openai.parse(json.dumps({"model": "m", "prompt": prompt}).encode(), chat=False)
    assert refused.value.param == "prompt"


def _text(*messages: tuple[str, str], **fields: object) -> bytes | None:
    body = {"model": "m", "messages": [{"role": role, "content": text} for role, text in messages], **fields}
    return openai.parse(json.dumps(body).encode(), chat=True).text


def test_it_fingerprints_text_so_that_boundaries_matter() -> None:
    assert _text(("user", "ab"), ("user", "c")) != _text(("user", "a"), ("user", "bc"))
    assert _text(("user", "a")) != _text(("system", "a"))


def test_it_fingerprints_a_longer_conversation_as_a_continuation() -> None:
    short, long = _text(("system", "s"), ("user", "a")), _text(("system", "s"), ("user", "a"), ("assistant", "b"))
    assert short and long and long.startswith(short)


def test_it_puts_tools_into_the_fingerprint() -> None:
    assert _text(("user", "a"), tools=[{"type": "function"}]) != _text(("user", "a"))


def test_it_says_where_a_fingerprint_stands_for_images_or_token_ids() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    assert openai.parse(json.dumps(chat([image])).encode(), chat=True).form == "media"
    assert openai.parse(b'{"model":"m","prompt":[1,2,3]}', chat=False).form == "ids"
    assert openai.parse(b'{"model":"m","prompt":["a","b"]}', chat=False).text is None
