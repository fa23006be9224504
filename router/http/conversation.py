"""The conversation inside a chat or completion request, checked, with the canonical text behind its fingerprint."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from router.http.canonical import CONTENT, ROLE, call, stable_arguments, stable_json, token_ids
from router.http.errors import BadRequest
from router.http.fields import PROMPTS_MAX
from router.http.parts import decode_checked, read_parts

MESSAGES_MAX = 10_000
ATTRIBUTION = b"x-anthropic-billing-header"
"""First line of a system text that vLLM drops: it differs on every request of one well-known client."""


class Conversation(NamedTuple):
    forward: Raw | bytes
    """JSON of the main field for the worker."""
    text: bytes | None
    """Canonical text, None where there is no single prompt."""
    form: str
    """What kind of text: see FORMS."""


FORMS = ("chat", "text", "ids", "media", "several")
"""How the prompt came. The same tokens may come in two forms, with different canonical text: what is known of one
form says nothing about the other. Of media it is not known how many tokens they are."""


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
_decode_prompt = msgspec.json.Decoder(str | list[Any]).decode


def read_messages(raw: Raw, *, body_bytes: int, param: str = "messages") -> Conversation:
    """Raises BadRequest."""
    if body_bytes > MESSAGES_MAX * 16:
        check_message_count(raw, param=param)
    forward: Raw | bytes = raw
    try:
        messages = _decode_messages(raw)
    except msgspec.ValidationError as error:
        if "unknown field" not in str(error):
            raise BadRequest(f"{param}: {error}", param=param) from None
        forward = _without_unknown_keys(raw)
        messages = _decode_strict(forward, param)
    if not messages:
        raise BadRequest(f"{param} must not be empty.", param=param)
    if len(messages) > MESSAGES_MAX:
        raise BadRequest(f"More than {MESSAGES_MAX} messages.", param=param)
    return _canonical(forward, messages, param)


def check_message_count(raw: Raw, *, param: str) -> None:
    """Before a million structs are built: every message has a role."""
    if bytes(raw).count(b'"role"') > MESSAGES_MAX * 2:
        raise BadRequest(f"More than {MESSAGES_MAX} messages.", param=param)


def system_text(text: bytes) -> bytes:
    """A system message without the attribution line."""
    return text.partition(b"\n")[2] if text.startswith(ATTRIBUTION) else text


def _decode_strict(data: bytes, param: str) -> list[Message]:
    try:
        return _decode_messages(data)
    except msgspec.ValidationError as error:
        raise BadRequest(f"{param}: {error}", param=param) from None


def _without_unknown_keys(raw: Raw) -> bytes:
    messages = _decode_loose(raw)
    return msgspec.json.encode(
        [{key: value for key, value in message.items() if key in _MESSAGE_KEYS} for message in messages]
    )


def _canonical(forward: Raw | bytes, messages: list[Message], param: str) -> Conversation:
    out: list[bytes] = []
    media = dirty = False
    for message in messages:
        role, content = message.role, message.content
        out += (ROLE, role.encode(), CONTENT)
        text = b""
        if type(content) is str:
            text = content.encode()
        elif type(content) is list:
            text, has_media, part_dirty = read_parts(content, param=param)
            media, dirty = media or has_media, dirty or part_dirty
        elif role == "user":
            raise BadRequest("A user message needs content.", param=param)
        out.append(system_text(text) if role == "system" else text)
        if not (message.function_call is message.audio is message.tools is message.annotations is UNSET):
            _check_extras(message, param)
        if message.tool_calls is not UNSET:
            out.append(_calls(message.tool_calls, param))
    if dirty:
        forward = msgspec.json.encode(messages)
    return Conversation(forward, b"".join(out), "media" if media else "chat")


def _check_extras(message: Message, param: str) -> None:
    for extra in (message.function_call, message.audio, message.tools, message.annotations):
        if extra is not UNSET:
            decode_checked(extra, param=param)


def _calls(raw: Raw, param: str) -> bytes:
    """Name and arguments of each tool call, as templates print them."""
    calls = decode_checked(raw, param=param)
    if type(calls) is not list:
        return b"" if calls is None else stable_json(calls)
    return b"".join(_one_call(item) for item in calls)


def _one_call(item: Any) -> bytes:
    """Any: an element of the client's list; what is no tool call is left to the worker's judgement."""
    function = item.get("function") if type(item) is dict else None
    if type(function) is not dict or type(function.get("name")) is not str:
        return stable_json(item)
    arguments = function.get("arguments")
    return call(function["name"], stable_arguments(arguments) if type(arguments) is str else stable_json(arguments))


def read_prompt(raw: Raw, *, param: str = "prompt", prompts_max: int = PROMPTS_MAX) -> Conversation:
    """A text, token ids, or a list of either. Raises BadRequest."""
    try:
        prompt = _decode_prompt(raw)
    except msgspec.ValidationError as error:
        raise BadRequest(f"{param}: {error}", param=param) from None
    if isinstance(prompt, str):
        return Conversation(raw, CONTENT + prompt.encode(), "text")
    if not prompt:
        raise BadRequest(f"{param} must not be empty.", param=param)
    if _are_ids(prompt):
        return Conversation(raw, token_ids(prompt), "ids")
    if len(prompt) > prompts_max:
        raise BadRequest(f"More than {prompts_max} prompts in one request.", param=param)
    only = prompt[0] if len(prompt) == 1 else None
    if all(type(item) is str for item in prompt):
        return Conversation(raw, CONTENT + only.encode(), "text") if only is not None else _several(raw)
    if all(type(item) is list and item and _are_ids(item) for item in prompt):
        return Conversation(raw, token_ids(only), "ids") if only is not None else _several(raw)
    raise BadRequest(f"{param} must be a string, token ids, or a list of either.", param=param)


def _several(raw: Raw) -> Conversation:
    """One fingerprint cannot stand for many prompts."""
    return Conversation(raw, None, "several")


def _are_ids(items: list[Any]) -> bool:
    return all(type(item) is int for item in items)
