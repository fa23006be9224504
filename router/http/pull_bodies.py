"""The two requests of a pull, as vLLM's NIXL connector wants them, and the answer between them.

    source   the prompt, one token, "kv_transfer_params": {"do_remote_decode": true}       → computes, keeps its KV
    answer   "kv_transfer_params": {engine, request, block ids, host, port}                → an offer
    chosen   the request itself, with the offer as its "kv_transfer_params"                → pulls, answers

Source: vLLM 0.32, `kv_connector/v1/nixl/pull_scheduler.py` and `entrypoints/openai`. What a client sends under that
name never gets this far (`fields.NEVER_FORWARDED`).
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Raw

from router.contract.snapshot import UnknownFields
from router.http.endpoints import RESPONSES
from router.http.openai import ApiRequest

OFFER_BYTES_MAX: Final = 1024 * 1024
"""Of an answer with an offer: about 7 bytes a block, so 2 million tokens in blocks of 16."""

ONE_TOKEN: Final = b'"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false},"stream":false,"%b":1}'

OF_THE_ANSWER: Final = frozenset((
    "stream", "stream_interval", "max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "n",
    "best_of", "logprobs", "top_logprobs", "logprob_token_ids", "response_format", "structured_outputs",
    "structural_tag", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_whitespace_pattern",
    "stop", "stop_token_ids", "stop_sequences", "bad_words", "allowed_token_ids", "logit_bias", "repetition_detection",
    "thinking_token_budget", "echo",
))  # fmt: skip
"""Fields that shape the answer and leave the prompt as it is: the source is not asked for an answer."""

_FORCED_TOOLS: Final = re.compile(rb'\s*(\{|"(required|any)")')
_ERROR: Final = re.compile(rb'^(?:[0-9a-fA-F]+\r\n)?(?:event: error|data: \{"error"\s*:)')

_decode_raws = msgspec.json.Decoder(dict[str, Raw]).decode


class Offer(msgspec.Struct, gc=False):
    """What another worker needs to pull a prompt's KV; `raw` goes to it as it came."""

    raw: bytes
    body: bytes
    """The whole answer, for its usage."""


class _Params(msgspec.Struct, gc=False):
    do_remote_prefill: bool
    remote_block_ids: list[object]
    remote_engine_id: str
    remote_request_id: str
    remote_host: str
    remote_port: int


class _Answer(msgspec.Struct, gc=False):
    kv_transfer_params: Raw


_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_params = msgspec.json.Decoder(_Params).decode


def may_pull(api: ApiRequest) -> bool:
    """Whether the request can be sent in two: one answer, not forced into a tool call that one token cannot hold.

    A stream of responses begins before the worker looks at the prompt, so a pull that fails could not be taken back.
    """
    if api.endpoint.speech == "none" or (api.endpoint is RESPONSES and api.stream):
        return False
    if api.plain:
        return True
    for intro, raw in api.fields:
        if intro in (b'"n":', b'"best_of":') and bytes(raw).strip() not in (b"1", b"null"):
            return False
        if intro == b'"tool_choice":' and _FORCED_TOOLS.match(bytes(raw)):
            return False
    return True


def source_body(api: ApiRequest, *, salt: str, unknown_fields: UnknownFields) -> bytes:
    """The body that has the source compute the prompt, under the same salt, and offer its KV."""
    parts: list[bytes | Raw] = [b'{"cache_salt":"', salt.encode(), b'"']
    fields: list[tuple[bytes, Raw | bytes]]
    if api.plain:
        fields = [(b'"%b":' % name.encode(), raw) for name, raw in _decode_raws(api.plain).items()]
    else:
        fields = list(api.fields)
        if unknown_fields == "pass":
            fields += [(msgspec.json.encode(name) + b":", raw) for name, raw in api.unknown.items()]
    for intro, raw in fields:
        if intro[1:-2].decode() not in OF_THE_ANSWER:
            parts += (b",", intro, raw)
    if api.endpoint.fixed:
        parts += (b",", api.endpoint.fixed)
    parts += (b",", ONE_TOKEN % api.endpoint.max_tokens[-1].encode())
    return b"".join(parts)


def read_offer(body: bytes) -> Offer | None:
    """None when the source offers nothing: it has no such connector, or the prompt is too short."""
    try:
        raw = bytes(_decode_answer(body).kv_transfer_params)
        params = _decode_params(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not params.do_remote_prefill or not params.remote_block_ids:
        return None
    return Offer(raw, body)


def with_offer(body: bytes, raw: bytes) -> bytes:
    """The request's own body, to be answered by the worker that pulls."""
    return b"".join((memoryview(body)[:-1], b',"kv_transfer_params":', raw, b"}"))


def begins_with_error(data: bytes) -> bool:
    """Whether a stream's first bytes are its failure: with `kv_load_failure_policy` `fail` a worker says so in an
    event, behind a head that is good."""
    return _ERROR.match(data) is not None
