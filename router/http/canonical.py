"""Canonical text: the bytes behind a prompt's fingerprint. Made for hashing only; the request is forwarded as sent.

Equal rendering by the worker must give equal canonical text, or the isolation bound (S8) underrates what two prompts
share; the other way round costs a wrong prediction at most. So whatever a chat template cannot see, or commonly leaves
out, is left out here, and JSON is brought into one spelling (S4.4, C25):

    keys sorted, nulls dropped         the worker parses tools into its own model, which orders keys and fills nulls
    tool-call arguments parsed         templates print them afresh
    ids of tool calls left out         most templates do not print them
    text parts joined by line breaks   as vLLM does for templates that take content as one string
    media as a digest of the part      equal parts match; what they are worth in tokens only the worker knows

Not knowable without the template: whether it trims a message (so nothing is trimmed), joins parts otherwise, or
ignores tools. Small template settings (`enable_thinking` and its like) mostly change the prompt's last line and are
left out; long ones carry text and stay.

Parts are separated by bytes that UTF-8 never contains, so ("ab", "c") and ("a", "bc") differ while a longer
conversation still begins with the bytes of the shorter one.
"""

from __future__ import annotations

import hashlib
from array import array
from typing import Any, Final

import msgspec

ROLE: Final = b"\xff"
CONTENT: Final = b"\xfe"
CALLS: Final = b"\xfd"
HEAD: Final = b"\xfc"
MEDIA: Final = b"\xfb"
IDS: Final = b"\xfa"
"""Separators: none of these bytes occurs in UTF-8."""
PART_BREAK: Final = b"\n"

MEDIA_BYTES: Final = 2048
"""Length of a media part's mark: weighs about 500 tokens, as an image tile does, when load is estimated."""
SETTINGS_BYTES_MIN: Final = 256
"""Template settings shorter than this carry no text."""

_sorted = msgspec.json.Encoder(order="sorted").encode
_decode_any = msgspec.json.decode


def stable_json(value: Any) -> bytes:
    """One spelling for equal JSON. Any: decoded JSON, of bounded depth."""
    data = _sorted(value)
    # The walk in Python costs three times the encoding, and few values hold a null.
    return _sorted(_without_nulls(value)) if b"null" in data else data


def stable_arguments(text: str) -> bytes:
    """A tool call's arguments: JSON inside a JSON string, or whatever the model wrote instead."""
    try:
        return stable_json(_decode_any(text))
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return text.encode("utf-8", "surrogatepass")


def setting(name: str, value: Any) -> bytes:
    """A part of the prompt that stands in front of the messages. Any: decoded JSON."""
    return b"".join((HEAD, name.encode(), CONTENT, stable_json(value)))


def call(name: str, arguments: bytes) -> bytes:
    return b"".join((CALLS, name.encode("utf-8", "surrogatepass"), CONTENT, arguments))


def media_mark(part: Any) -> bytes:
    """Stands for an image, audio or file part. Any: the part's decoded JSON; equal parts give equal marks."""
    digest = hashlib.blake2b(stable_json(part), digest_size=32).hexdigest().encode()
    return MEDIA + digest * (MEDIA_BYTES // len(digest))


def token_ids(ids: list[int]) -> bytes | None:
    """The ids' own bytes, four each; None for ids that no worker has."""
    try:
        return IDS + array("I", ids).tobytes()
    except OverflowError:
        return None


def chat_tool(tool: Any) -> Any:
    """A tool in the one shape that chat, messages and responses come down to. Any: decoded JSON."""
    if type(tool) is not dict:
        return tool
    if "input_schema" in tool:
        tool = {"name": tool.get("name"), "description": tool.get("description"), "parameters": tool["input_schema"]}
    inner = tool.get("function", tool)
    if type(inner) is not dict:
        return tool
    return {"type": "function", "function": {key: inner[key] for key in inner if key not in _NOT_PRINTED}}


_NOT_PRINTED: Final = frozenset(("type", "strict", "cache_control", "defer_loading"))
"""Keys of a tool that are about the call, not about the prompt."""


def _without_nulls(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if kind is list:
        return [_without_nulls(item) for item in value]
    return value
