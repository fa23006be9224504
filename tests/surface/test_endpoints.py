"""Every endpoint on sockets: our salt alone, forbidden fields never, usage counted, streams and errors in its words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from router.http.endpoints import ENDPOINTS
from router.http.errors import BadRequest
from router.http.fields import NEVER_FORWARDED
from router.http.openai import parse_for, upstream_body
from tests.router.conftest import ALICE_KEY, ALICE_SALT, RunningRouter, StartRouter, snapshot_for
from tests.router.scripted_worker import ScriptedWorker, answer_json, raw, stream
from tests.surface.conftest import (
    CREATED,
    IN_PROGRESS,
    MESSAGE_START,
    MESSAGE_TEXT,
    MESSAGES_USAGE,
    REQUESTS,
    RESPONSES_USAGE,
    STREAMS,
    TEXT_DELTA,
    streaming,
)

NEW = ("/v1/messages", "/v1/responses", "/v1/embeddings")


@pytest.mark.parametrize("path", NEW)
@pytest.mark.parametrize(
    "extra",
    [
        b'"cache_salt":"evil"',
        b'"cache_salt":"evil","cache\\u005fsalt":"evil"',
        b'"extra_body":{"cache_salt":"evil"},"request_id":"evil","session_id":"evil","priority":3',
        b'"kv_transfer_params":{"remote_host":"evil"},"vllm_xargs":{"kv_cache_report_mode":"evil"}',
    ],
)
async def test_it_sends_exactly_one_salt_and_it_is_ours(
    router: RunningRouter, worker: ScriptedWorker, path: str, extra: bytes
) -> None:
    answer = await router.post(b"{" + extra + b"," + json.dumps(REQUESTS[path]).encode()[1:], path=path)
    assert answer.status_code == 200, answer.text
    sent = worker.asked[0]
    assert sent.raw_head.startswith(b"POST " + path.encode() + b" HTTP/1.1")
    assert sent.body.count(b"salt") == 1 and b"evil" not in sent.body
    assert sent.json["cache_salt"] == ALICE_SALT


@pytest.mark.parametrize("path", REQUESTS)
@pytest.mark.parametrize("policy", ["drop", "pass"])
def test_it_never_forwards_what_must_stay_here(path: str, policy: Any) -> None:
    endpoint = ENDPOINTS[path.encode()]
    for field in sorted(NEVER_FORWARDED - {"previous_response_id"}):
        request = parse_for(endpoint, json.dumps({**REQUESTS[path], field: "evil"}).encode())
        assert b"evil" not in upstream_body(request, salt="ours", unknown_fields=policy), field


SALTED_TEXT = {"type": "text", "text": "hi", "cache_salt": "evil", "uuid": "evil"}
SALTED_PARTS: dict[str, dict[str, Any]] = {
    "/v1/messages": {
        "system": [{"type": "text", "text": "s", "cache_salt": "evil"}],
        "messages": [
            {"role": "user", "content": [SALTED_TEXT]},
            {"role": "user", "content": [{"type": "tool_result", "content": [SALTED_TEXT]}]},
        ],
    },
    "/v1/responses": {
        "input": [{"role": "user", "cache_salt": "evil", "content": [{**SALTED_TEXT, "type": "input_text"}]}],
    },
    "/v1/embeddings": {
        "input": None,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", "uuid": "evil"}]}],
    },
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", "uuid": "evil"}]}],
    },
}  # fmt: skip


@pytest.mark.parametrize("path", SALTED_PARTS)
def test_it_takes_identities_out_of_content(path: str) -> None:
    fields = {**REQUESTS[path], **SALTED_PARTS[path]}
    request = parse_for(ENDPOINTS[path.encode()], json.dumps({k: v for k, v in fields.items() if v}).encode())
    body = upstream_body(request, salt="ours", unknown_fields="drop")
    assert b"evil" not in body and b'"hi"' in body


DOCUMENTED: dict[str, dict[str, Any]] = {
    "/v1/messages": {
        "system": "s", "metadata": {"user_id": "u"}, "stop_sequences": ["x"], "temperature": 0.5,
        "top_p": 0.9, "top_k": 5, "thinking": {"type": "enabled", "budget_tokens": 1024},
        "tool_choice": {"type": "auto"}, "service_tier": "auto",
        "tools": [{"name": "t", "input_schema": {"type": "object"}}], "output_config": {"effort": "low"},
        "chat_template_kwargs": {"enable_thinking": False}, "stream": False,
    },
    "/v1/responses": {
        "instructions": "s", "max_output_tokens": 5, "metadata": {"a": "b"}, "parallel_tool_calls": True,
        "reasoning": {"effort": "low"}, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 1,
        "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [{"type": "function", "name": "t"}],
        "truncation": "disabled", "user": "u", "include": ["reasoning.encrypted_content"], "top_logprobs": 1,
        "service_tier": "auto", "max_tool_calls": 3, "prompt_cache_key": "k", "stop": ["x"], "ignore_eos": True,
    },
    "/v1/embeddings": {
        "encoding_format": "base64", "dimensions": 8, "user": "u", "truncate_prompt_tokens": 100,
        "truncation_side": "left", "add_special_tokens": False, "use_activation": True, "embed_dtype": "float32",
        "endianness": "little",
        "padding": "do_not_pad",
    },
}  # fmt: skip


@pytest.mark.parametrize("path", DOCUMENTED)
async def test_it_forwards_what_the_documents_name(router: RunningRouter, worker: ScriptedWorker, path: str) -> None:
    answer = await router.post({**REQUESTS[path], **DOCUMENTED[path], "brand_new": 1}, path=path)
    assert answer.status_code == 200, answer.text
    sent = worker.asked[0].json
    expected = {**REQUESTS[path], **DOCUMENTED[path], "cache_salt": ALICE_SALT}
    assert sent == (expected | {"store": False} if path == "/v1/responses" else expected)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/messages", {"max_tokens": None}, "max_tokens"),
    ("/v1/messages", {"messages": []}, "messages"),
    ("/v1/messages", {"messages": [{"role": "user"}]}, "messages"),
    ("/v1/messages", {"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages"),
    ("/v1/messages", {"system": 5}, "system"),
    ("/v1/messages", {"stop_sequences": ["x"] * 17}, "stop_sequences"),
    (
        "/v1/messages",
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "file:///etc/x"}}]}]},
        "messages",
    ),
    (
        "/v1/messages",
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [
            {"type": "image", "source": {"type": "url", "url": "http://169.254.169.254/x"}}]}]}]},
        "messages",
    ),
    ("/v1/responses", {"input": 5}, "input"),
    ("/v1/responses", {"input": []}, "input"),
    ("/v1/responses", {"user": "x" * 1025}, "user"),
    ("/v1/responses", {"background": True}, "background"),
    ("/v1/responses", {"previous_response_id": "resp_of_another_tenant"}, "previous_response_id"),
    ("/v1/responses", {"conversation": "conv_1"}, "conversation"),
    ("/v1/responses", {"prompt": {"id": "pmpt_1"}}, "prompt"),
    ("/v1/responses", {"input": [{"type": "item_reference", "id": "msg_1"}]}, "input"),
    ("/v1/responses", {"tools": [{"type": "mcp", "server_url": "http://10.0.0.1"}]}, "tools"),
    ("/v1/responses", {"tools": [{"type": "code_interpreter"}]}, "tools"),
    (
        "/v1/responses",
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://localhost/x"}]}]},
        "input",
    ),
    ("/v1/responses", {"text": {"format": {"schema": "x" * 70_000}}}, "text"),
    ("/v1/embeddings", {"input": []}, "input"),
    ("/v1/embeddings", {"input": {"a": 1}}, "input"),
    ("/v1/embeddings", {"input": ["a"] * 2049}, "input"),
    ("/v1/embeddings", {"encoding_format": "bytes"}, "encoding_format"),
    ("/v1/embeddings", {"messages": [{"role": "user", "content": "x"}]}, "input"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "fields", "param"), REFUSED)
def test_it_refuses_naming_the_field(path: str, fields: dict[str, Any], param: str) -> None:
    body = {name: value for name, value in {**REQUESTS[path], **fields}.items() if value is not None}
    with pytest.raises(BadRequest) as refused:
        parse_for(ENDPOINTS[path.encode()], json.dumps(body).encode())
    assert refused.value.param == param


@pytest.mark.parametrize(("path", "usage"), [("/v1/messages", MESSAGES_USAGE), ("/v1/responses", RESPONSES_USAGE)])
@pytest.mark.parametrize("streams", [False, True])
async def test_it_counts_the_usage_of_each_spelling(
    router: RunningRouter, worker: ScriptedWorker, path: str, usage: dict[str, Any], streams: bool
) -> None:
    worker.script = streaming(path) if streams else answer_json({"id": "x", "usage": usage, "user": None})
    answer = await router.post({**REQUESTS[path], "stream": streams}, path=path)
    assert answer.status_code == 200
    assert answer.content == b"".join(STREAMS[path]) if streams else answer.json()["usage"] == usage
    router.runtime.telemetry.close_second(0)
    pair = ("m", "acme")
    totals = router.runtime.telemetry.totals
    assert (totals.query_tokens[pair], totals.hit_tokens[pair]) == (100, 64)
    assert totals.requests == {("m", "acme", "ok"): 1}


async def test_it_times_a_response_from_its_first_output(router: RunningRouter, worker: ScriptedWorker) -> None:
    worker.script = stream(*STREAMS["/v1/responses"], pause_s=0.15)
    await router.post({**REQUESTS["/v1/responses"], "stream": True}, path="/v1/responses")
    router.runtime.telemetry.close_second(0)
    buckets = {**router.runtime.telemetry.totals.ttft_ms["hit"], **router.runtime.telemetry.totals.ttft_ms["partial"]}
    assert buckets and 1.05 ** min(buckets) > 250  # the first two events come before the prompt is computed


@pytest.mark.parametrize(("path", "begun"), [("/v1/messages", MESSAGE_START), ("/v1/responses", CREATED + IN_PROGRESS)])
async def test_it_ends_a_broken_stream_with_the_protocols_error_event(
    router: RunningRouter, worker: ScriptedWorker, path: str, begun: bytes
) -> None:
    text = MESSAGE_TEXT if path == "/v1/messages" else TEXT_DELTA
    worker.script = stream(begun, text, end=b"0\r\n\r\n")
    answer = await router.post({**REQUESTS[path], "stream": True}, path=path)
    assert answer.content.startswith(begun + text)
    last = answer.content.removeprefix(begun + text)
    assert last.startswith(b"event: error\ndata: ") and last.endswith(b"\n\n") and last.count(b"event:") == 1
    error = json.loads(last.partition(b"data: ")[2])
    assert error["type"] == "error"
    if path == "/v1/messages":
        assert error["error"]["type"] == "api_error"
    else:
        assert (error["code"], error["sequence_number"]) == ("upstream_died", 3)


async def test_it_answers_errors_of_messages_in_anthropics_shape(router: RunningRouter, worker: ScriptedWorker) -> None:
    path = "/v1/messages"
    wrong_key = await router.post(REQUESTS[path], path=path, key="tm_none")
    assert (wrong_key.status_code, wrong_key.json()["error"]["type"]) == (401, "authentication_error")
    bad = await router.post({**REQUESTS[path], "messages": []}, path=path)
    assert bad.json() == {
        "type": "error", "error": {"type": "invalid_request_error", "message": "messages must not be empty."},
    }  # fmt: skip
    worker.script = raw(b"junk")
    down = await router.post(REQUESTS[path], path=path)
    assert (down.status_code, down.json()["error"]["type"]) == (502, "api_error")
    assert worker.connections > 0


async def test_it_takes_the_key_from_where_anthropics_clients_send_it(
    router: RunningRouter, worker: ScriptedWorker
) -> None:
    headers = {"x-api-key": ALICE_KEY, "anthropic-version": "2023-06-01"}
    answer = await router.post(REQUESTS["/v1/messages"], path="/v1/messages", key=None, headers=headers)
    assert answer.status_code == 200
    assert ALICE_KEY.encode() not in worker.asked[0].raw_head and b"anthropic" not in worker.asked[0].raw_head


@pytest.mark.parametrize("path", NEW)
async def test_it_says_so_when_the_models_servers_lack_the_endpoint(
    router: RunningRouter, worker: ScriptedWorker, path: str
) -> None:
    worker.script = answer_json({"detail": "Not Found"}, status=404)
    answer = await router.post(REQUESTS[path], path=path)
    assert answer.status_code == 501 and "do not offer" in answer.text
    assert len(worker.asked) == 1


@pytest.mark.parametrize("path", NEW)
async def test_it_asks_another_worker_before_the_first_byte(
    start_router: StartRouter, worker: ScriptedWorker, other_worker: ScriptedWorker, path: str
) -> None:
    router = await start_router(snapshot_for([worker.url, other_worker.url]))
    worker.script = raw(b"")
    other_worker.script = raw(b"")
    assert (await router.post(REQUESTS[path], path=path)).status_code == 502
    assert {len(worker.asked), len(other_worker.asked)} == {1}
    worker.script = other_worker.script = answer_json({"id": "x"})
    assert (await router.post(REQUESTS[path], path=path)).status_code == 200


async def test_it_keeps_sessions_of_anthropics_clients_together(
    start_router: StartRouter, worker: ScriptedWorker, other_worker: ScriptedWorker
) -> None:
    router = await start_router(snapshot_for([worker.url, other_worker.url]))
    for turn in range(6):
        body = {**REQUESTS["/v1/messages"], "metadata": {"user_id": "someone"}}
        body["messages"] = [{"role": "user", "content": f"{turn} words"}]
        assert (await router.post(body, path="/v1/messages")).status_code == 200
    assert sorted((len(worker.asked), len(other_worker.asked))) == [0, 6]
