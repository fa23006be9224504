"""Strict parse of an OpenAI request body, and the body that goes upstream.

The body is decoded into raw values by key, so that escaped and repeated keys collapse into one; known values are
checked and forwarded byte for byte; exactly one `cache_salt`, ours, is added (S2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

from router.contract.snapshot import UnknownFields
from router.http import conversation
from router.http.depth import check_depth
from router.http.errors import BadRequest
from router.http.fields import CHAT_FIELDS, GRAMMAR_BYTES_MAX, NEVER_FORWARDED, TEXT_FIELDS

COMPILED_DEPTH_MAX = 32
FIELDS_MAX = 256
SESSION_CHARS_MAX = 256
_NESTED = (list, dict)
_RENDERED = ("chat_template", "chat_template_kwargs", "documents", "tools", "functions")
"""Fields the chat template puts in front of the messages or that change how it renders them."""

_decode_object = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode


@dataclass(slots=True)
class ApiRequest:
    """One checked request. `fields` keeps the client's own bytes of every value that may go upstream."""

    chat: bool
    model: str
    fields: list[tuple[bytes, Raw | bytes]]
    unknown: dict[str, Raw]
    text: bytes | None
    """Canonical text for the fingerprint, None when there is none."""
    stream: bool
    wants_usage: bool
    """The client itself asked for the usage chunk of a stream."""
    stream_options: dict[str, Any] | None
    user: str | None
    max_tokens: int | None


def parse(body: bytes, *, chat: bool) -> ApiRequest:
    """Raises BadRequest naming the field; never anything else."""
    raws = _decode_body(body)
    known = CHAT_FIELDS if chat else TEXT_FIELDS
    main = "messages" if chat else "prompt"
    if main not in raws:
        raise BadRequest(f"{main} is missing.", param=main)
    if "model" not in raws:
        raise BadRequest("model is missing.", param="model")
    fields: list[tuple[bytes, Raw | bytes]] = []
    unknown: dict[str, Raw] = {}
    values: dict[str, Any] = {}
    for name, raw in raws.items():
        field = known.get(name)
        if field is not None:
            if field.compiled:
                _check_compiled(name, raw)
            try:
                values[name] = value = field.check(raw)
            except msgspec.DecodeError as error:
                raise BadRequest(f"{name}: {error}", param=name) from None
            except RecursionError:
                raise BadRequest(f"{name} is nested too deeply.", param=name) from None
            if type(value) in _NESTED:
                check_depth(name, raw)
            if name != "stream_options":
                fields.append((field.intro, raw))
        elif name != main and name not in NEVER_FORWARDED:
            unknown[name] = raw
    forward, text = _conversation(raws, main, len(body))
    fields.append((b'"messages":' if chat else b'"prompt":', forward))
    return _assemble(chat, fields, unknown, values, _with_rendered(text, raws) if chat else text)


def upstream_body(request: ApiRequest, *, salt: str, unknown_fields: UnknownFields) -> bytes:
    """The body for the worker. Raises BadRequest for unknown fields under the policy `reject`."""
    parts: list[bytes | Raw] = [b'{"cache_salt":"', salt.encode(), b'"']
    for intro, raw in request.fields:
        parts += (b",", intro, raw)
    if request.stream:
        parts += (b',"stream_options":', _stream_options(request))
    if request.unknown and unknown_fields != "drop":
        if unknown_fields == "reject":
            name = next(iter(request.unknown))[:64]
            raise BadRequest(f"Unknown field: {name}", param=name, code="unknown_field")
        for name, raw in request.unknown.items():
            check_depth(name[:64], raw)
            parts += (b",", msgspec.json.encode(name), b":", raw)
    parts.append(b"}")
    # Raw offers the buffer protocol, which join takes as it takes bytes.
    return b"".join(parts)


def _stream_options(request: ApiRequest) -> bytes:
    """Usage is always asked for: it is where the delivered cached tokens are. The relay strips what was not wanted."""
    options = dict(request.stream_options or {})
    if not request.wants_usage:
        options.pop("continuous_usage_stats", None)
    options["include_usage"] = True
    return msgspec.json.encode(options)


def _decode_body(body: bytes) -> dict[str, Raw]:
    try:
        if not body.isascii():
            body.decode()
        raws = _decode_object(body)
    except UnicodeDecodeError:
        raise BadRequest("The body is not valid UTF-8.", code="invalid_json") from None
    except RecursionError:
        raise BadRequest("The body is nested too deeply.", code="invalid_json") from None
    except msgspec.ValidationError:
        raise BadRequest("The body must be a JSON object.", code="invalid_json") from None
    except msgspec.DecodeError:
        raise BadRequest("The body is not valid JSON.", code="invalid_json") from None
    if len(raws) > FIELDS_MAX:
        raise BadRequest(f"More than {FIELDS_MAX} fields.", code="invalid_json")
    return raws


def _check_compiled(name: str, raw: Raw) -> None:
    """Bounds for what a worker would compile into an automaton."""
    if memoryview(raw).nbytes > GRAMMAR_BYTES_MAX:
        raise BadRequest(f"{name} is longer than {GRAMMAR_BYTES_MAX} bytes.", param=name)
    check_depth(name, raw, COMPILED_DEPTH_MAX)


def _conversation(raws: dict[str, Raw], main: str, body_bytes: int) -> tuple[Raw | bytes, bytes | None]:
    raw = raws[main]
    try:
        if main == "prompt":
            return raw, conversation.read_prompt(raw)
        return conversation.read_messages(raw, body_bytes=body_bytes)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f"{main}: {error}", param=main) from None


def _with_rendered(text: bytes | None, raws: dict[str, Raw]) -> bytes | None:
    if text is None:
        return None
    if not any(name in raws for name in _RENDERED):
        return text
    head = [
        conversation.HEAD + name.encode() + conversation.CONTENT + bytes(raws[name])
        for name in _RENDERED
        if name in raws
    ]
    return b"".join((*head, text)) if head else text


def _assemble(
    chat: bool,
    fields: list[tuple[bytes, Raw | bytes]],
    unknown: dict[str, Raw],
    values: dict[str, Any],
    text: bytes | None,
) -> ApiRequest:
    get = values.get
    options, max_tokens, user = get("stream_options"), get("max_completion_tokens"), get("user")
    return ApiRequest(
        chat,
        values["model"],
        fields,
        unknown,
        text,
        bool(get("stream")),
        bool(options and options.get("include_usage") is True),
        options,
        user[:SESSION_CHARS_MAX] if user else None,
        max_tokens if max_tokens is not None else get("max_tokens"),
    )
