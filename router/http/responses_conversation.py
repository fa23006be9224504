"""The input of a `/v1/responses` request: checked, with the same canonical text as the chat it becomes.

Follows vLLM 0.32 (`entrypoints/openai/responses/utils.py`): items turn into chat messages. Items that refer to what a
worker would have stored (`item_reference`) are refused: no conversation state is kept behind a router, and another
tenant's must stay out of reach.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from router.http.canonical import CONTENT, PART_BREAK, ROLE, call, media_mark, stable_arguments, stable_json
from router.http.conversation import MESSAGES_MAX, Conversation
from router.http.depth import check_depth
from router.http.errors import BadRequest
from router.http.parts import IDENTITY, part_text

_Item = dict[str, Any]  # Any: an item's decoded JSON
_decode_input = msgspec.json.Decoder(str | list[_Item]).decode


def read_input(raw: Raw) -> Conversation:
    """`input` of the request. Raises BadRequest."""
    check_depth("input", raw)
    try:
        given = _decode_input(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f"input: {error}", param="input") from None
    if isinstance(given, str):
        return Conversation(raw, _turn("user", given.encode()), "chat")
    if not given:
        raise BadRequest("input must not be empty.", param="input")
    if len(given) > MESSAGES_MAX:
        raise BadRequest(f"More than {MESSAGES_MAX} items.", param="input")
    reader = _Reader()
    for item in given:
        reader.read(item)
    forward = msgspec.json.encode(given) if reader.dirty else raw
    return Conversation(forward, b"".join(reader.out), "media" if reader.media else "chat")


def instructions_text(instructions: str) -> bytes:
    """Canonical text of `instructions`, which stand in front of the input."""
    return _turn("system", instructions.encode()) if instructions else b""


class _Reader:
    """Turns items into canonical text; calls join the assistant's message before them."""

    def __init__(self) -> None:
        self.out: list[bytes] = []
        self.media = False
        self.dirty = False
        self._role = ""
        """Of the message in front."""

    def read(self, item: _Item) -> None:
        self.dirty |= _take_identities(item)
        kind = item.get("type", "message")
        if kind == "message":
            self._message(item)
        elif kind in ("function_call", "custom_tool_call"):
            self._call(item, "arguments" if kind == "function_call" else "input")
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self._begin("tool", self._content(item.get("output")))
        elif kind == "item_reference":
            raise BadRequest("Items are not stored here: send the item itself.", param="input")
        elif kind != "reasoning":
            # Another kind of item: part of the prompt in a way that only the worker knows.
            self.media = True
            self.out.append(media_mark(item))

    def _message(self, item: _Item) -> None:
        role = item.get("role")
        if type(role) is not str:
            raise BadRequest("A message needs a role.", param="input")
        self._begin(role, self._content(item.get("content")))

    def _begin(self, role: str, text: bytes) -> None:
        self._role = role
        self.out.append(_turn(role, text))

    def _call(self, item: _Item, key: str) -> None:
        name, arguments = item.get("name"), item.get(key)
        if type(name) is not str:
            raise BadRequest("A tool call needs a name.", param="input")
        if self._role != "assistant":
            self._begin("assistant", b"")
        self.out.append(call(name, stable_arguments(arguments) if type(arguments) is str else stable_json(arguments)))

    def _content(self, content: Any) -> bytes:
        """Any: a text or a list of parts."""
        if type(content) is str:
            return content.encode()
        if type(content) is not list:
            raise BadRequest("Content is a text or a list of parts.", param="input")
        texts: list[bytes] = []
        for part in content:
            if type(part) is not dict:
                raise BadRequest("A content part is an object.", param="input")
            self.dirty |= _take_identities(part)
            text = part_text(part, param="input")
            self.media = self.media or text is None
            texts.append(media_mark(part) if text is None else text)
        return PART_BREAK.join(texts)


def _turn(role: str, text: bytes) -> bytes:
    return b"".join((ROLE, role.encode(), CONTENT, text))


def _take_identities(value: _Item) -> bool:
    """Whether there were any."""
    found = IDENTITY & value.keys()
    for name in found:
        del value[name]
    return bool(found)
