"""The conversation inside a request body: messages or prompt, checked, with the canonical text behind its fingerprint.

The canonical text is what decides the prefix: template settings and tools, then role and content of each message, or
the prompt. Parts are separated by bytes that UTF-8 never contains, so that ("ab", "c") and ("a", "bc") differ while a
longer conversation still begins with the bytes of the shorter one.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from router.http.depth import check_depth
from router.http.errors import BadRequest
from router.http.fields import NEVER_FORWARDED, PROMPTS_MAX
from router.http.media import check_media_url

MESSAGES_MAX = 10_000
ROLE = b"\xff"
CONTENT = b"\xfe"
CALLS = b"\xfd"
HEAD = b"\xfc"
"""Separators: none of these bytes occurs in UTF-8."""


class Message(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    role: str
    content: str | list[dict[str, Raw]] | UnsetType | None = UNSET
    name: str | None = None
    tool_calls: Raw | UnsetType = UNSET
    tool_call_id: str | None = None
    function_call: Raw | UnsetType = UNSET
    refusal: str | None = None
    audio: Raw | UnsetType = UNSET
    reasoning: str | None = None
    reasoning_content: str | None = None
    tools: Raw | UnsetType = UNSET
    annotations: Raw | UnsetType = UNSET


_MESSAGE_KEYS = frozenset(Message.__struct_fields__)
_decode_messages = msgspec.json.Decoder(list[Message]).decode
_decode_loose = msgspec.json.Decoder(list[dict[str, Raw]]).decode
_decode_part = msgspec.json.Decoder(dict[str, Any]).decode
_decode_prompt = msgspec.json.Decoder(str | list[Any]).decode
_decode_any = msgspec.json.decode


def read_messages(raw: Raw, *, body_bytes: int) -> tuple[Raw | bytes, bytes | None]:
    """(JSON to forward, canonical text or None when parts are not text). Raises BadRequest."""
    if body_bytes > MESSAGES_MAX * 16:
        _check_message_count(raw)
    forward: Raw | bytes = raw
    try:
        messages = _decode_messages(raw)
    except msgspec.ValidationError as error:
        if "unknown field" not in str(error):
            raise BadRequest(f"messages: {error}", param="messages") from None
        forward = _without_unknown_keys(raw)
        messages = _decode_strict(forward)
    if not messages:
        raise BadRequest("messages must not be empty.", param="messages")
    if len(messages) > MESSAGES_MAX:
        raise BadRequest(f"More than {MESSAGES_MAX} messages.", param="messages")
    return _canonical(forward, messages)


def _decode_strict(data: bytes) -> list[Message]:
    try:
        return _decode_messages(data)
    except msgspec.ValidationError as error:
        raise BadRequest(f"messages: {error}", param="messages") from None


def _check_message_count(raw: Raw) -> None:
    """Before a million structs are built: every message has a role."""
    if bytes(raw).count(b'"role"') > MESSAGES_MAX * 2:
        raise BadRequest(f"More than {MESSAGES_MAX} messages.", param="messages")


def _without_unknown_keys(raw: Raw) -> bytes:
    messages = _decode_loose(raw)
    return msgspec.json.encode(
        [{key: value for key, value in message.items() if key in _MESSAGE_KEYS} for message in messages]
    )


def _canonical(forward: Raw | bytes, messages: list[Message]) -> tuple[Raw | bytes, bytes | None]:
    out: list[bytes] = []
    text_only, dirty = True, False
    for message in messages:
        out += (ROLE, message.role.encode(), CONTENT)
        content = message.content
        if type(content) is str:
            out.append(content.encode())
        elif type(content) is list:
            part_text, part_dirty = _read_parts(content)
            dirty = dirty or part_dirty
            if part_text is None:
                text_only = False
            else:
                out.append(part_text)
        elif message.role == "user":
            raise BadRequest("A user message needs content.", param="messages")
        for extra in (message.tool_calls, message.function_call, message.audio, message.tools, message.annotations):
            if extra is not UNSET:
                _decode_checked(extra)
        if message.tool_calls is not UNSET:
            out += (CALLS, bytes(message.tool_calls))
    if dirty:
        forward = msgspec.json.encode(messages)
    return forward, b"".join(out) if text_only else None


def _decode_checked(raw: Raw) -> Any:
    check_depth("messages", raw)
    try:
        return _decode_any(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f"messages: {error}", param="messages") from None


def _read_parts(parts: list[dict[str, Raw]]) -> tuple[bytes | None, bool]:
    """(their text, or None when one is not text; whether an identity field was taken out)."""
    out: list[bytes] = []
    text_only, dirty = True, False
    for part in parts:
        for name in NEVER_FORWARDED & part.keys():
            del part[name]
            dirty = True
        values = {name: _decode_checked(value) for name, value in part.items()}
        kind = values.get("type")
        text = values.get("text")
        if kind in ("text", "input_text") and type(text) is str:
            out.append(text.encode())
        elif type(kind) is str and kind not in ("text", "input_text"):
            text_only = False
            check_media_url(values)
        else:
            raise BadRequest("A content part needs a type, and a text part its text.", param="messages")
    return (CONTENT.join(out) if text_only else None), dirty


def read_prompt(raw: Raw) -> bytes | None:
    """Canonical text of `prompt`, None when it is token ids or several prompts. Raises BadRequest."""
    try:
        prompt = _decode_prompt(raw)
    except msgspec.ValidationError as error:
        raise BadRequest(f"prompt: {error}", param="prompt") from None
    if type(prompt) is str:
        return CONTENT + prompt.encode()
    if not prompt:
        raise BadRequest("prompt must not be empty.", param="prompt")
    if all(type(item) is int for item in prompt):
        return None
    if len(prompt) > PROMPTS_MAX:
        raise BadRequest(f"More than {PROMPTS_MAX} prompts in one request.", param="prompt")
    if all(type(item) is str for item in prompt):
        return CONTENT + prompt[0].encode() if len(prompt) == 1 else None
    if all(type(item) is list and item and all(type(token) is int for token in item) for item in prompt):
        return None
    raise BadRequest("prompt must be a string, token ids, or a list of either.", param="prompt")
