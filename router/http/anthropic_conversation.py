"""The conversation of a `/v1/messages` request: checked, with the same canonical text as the chat it becomes.

Follows vLLM 0.32 (`entrypoints/anthropic/serving.py`): blocks turn into chat messages, tool results into messages of
the role `tool`, and what the worker skips (attribution lines, redacted thinking) is skipped here.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from router.http.canonical import CONTENT, PART_BREAK, ROLE, call, media_mark, stable_json
from router.http.conversation import ATTRIBUTION, MESSAGES_MAX, Conversation, check_message_count
from router.http.depth import check_depth
from router.http.errors import BadRequest
from router.http.media import check_media_url
from router.http.parts import IDENTITY

_Block = dict[str, Any]  # Any: a block's decoded JSON
_SKIPPED = frozenset(("thinking", "redacted_thinking", "tool_reference", "tool_addition", "tool_removal"))
"""Blocks that carry no text of the prompt, or text that templates drop from earlier turns."""


class _Message(msgspec.Struct, gc=False):
    role: str
    content: str | list[_Block]


_decode_messages = msgspec.json.Decoder(list[_Message]).decode
_decode_system = msgspec.json.Decoder(str | list[_Block] | None).decode


def read_anthropic(raw: Raw, *, body_bytes: int) -> Conversation:
    """`messages` of the request. Raises BadRequest."""
    if body_bytes > MESSAGES_MAX * 16:
        check_message_count(raw, param="messages")
    check_depth("messages", raw)
    try:
        messages = _decode_messages(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f"messages: {error}", param="messages") from None
    if not messages:
        raise BadRequest("messages must not be empty.", param="messages")
    if len(messages) > MESSAGES_MAX:
        raise BadRequest(f"More than {MESSAGES_MAX} messages.", param="messages")
    reader = _Reader()
    for message in messages:
        reader.read(message.role, message.content)
    forward = msgspec.json.encode(messages) if reader.dirty else raw
    return Conversation(forward, b"".join(reader.out), "media" if reader.media else "chat")


def read_system(raw: Raw) -> tuple[Raw | bytes, bytes]:
    """(`system` to forward, the canonical text that stands in front of the messages). Raises BadRequest."""
    check_depth("system", raw)
    try:
        system = _decode_system(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f"system: {error}", param="system") from None
    if isinstance(system, str):
        return raw, _turn("system", system.encode()) if system else b""
    blocks = system or []
    dirty = any([_take_identities(block) for block in blocks])
    text = _system_text(blocks)
    return msgspec.json.encode(blocks) if dirty else raw, _turn("system", text) if text else b""


class _Reader:
    """Turns blocks into canonical text, message by message."""

    def __init__(self) -> None:
        self.out: list[bytes] = []
        self.media = False
        self.dirty = False

    def read(self, role: str, content: str | list[_Block]) -> None:
        if isinstance(content, str):
            if role != "system" or not content.startswith(ATTRIBUTION.decode()):
                self.out.append(_turn(role, content.encode()))
            return
        for block in content:
            self.dirty |= _take_identities(block)
        if role == "system":
            text = _system_text(content)
            self.out.append(_turn(role, text) if text else b"")
        else:
            self._blocks(role, content)

    def _blocks(self, role: str, blocks: list[_Block]) -> None:
        texts: list[bytes] = []
        calls: list[bytes] = []
        for block in blocks:
            kind = block.get("type")
            if kind == "tool_use" and type(block.get("name")) is str:
                calls.append(call(block["name"], stable_json(block.get("input") or {})))
            elif kind == "tool_result":
                # The worker puts results in front of the message that carries them.
                self.out.append(_turn("tool", self._result(block.get("content"))))
            elif kind not in _SKIPPED:
                texts.append(self._text(block))
        if texts or calls:
            self.out += (_turn(role, PART_BREAK.join(texts)), *calls)

    def _result(self, content: Any) -> bytes:
        """Any: a tool result's content, a text or blocks."""
        if type(content) is str:
            return content.encode()
        if type(content) is not list:
            return b""
        texts: list[bytes] = []
        for block in content:
            if type(block) is not dict:
                raise BadRequest("A tool result holds text or blocks.", param="messages")
            self.dirty |= _take_identities(block)
            if block.get("type") not in _SKIPPED:
                texts.append(self._text(block))
        return PART_BREAK.join(texts)

    def _text(self, block: _Block) -> bytes:
        kind, text = block.get("type"), block.get("text")
        if kind == "text" and type(text) is str:
            return text.encode()
        if type(kind) is not str or kind == "text":
            raise BadRequest("A content block needs a type, and a text block its text.", param="messages")
        check_media_url(block)
        self.media = True
        return media_mark({name: value for name, value in block.items() if name != "cache_control"})


def _turn(role: str, text: bytes) -> bytes:
    return b"".join((ROLE, role.encode(), CONTENT, text))


def _system_text(blocks: list[_Block]) -> bytes:
    texts = [block["text"] for block in blocks if block.get("type") == "text" and type(block.get("text")) is str]
    return "".join(text for text in texts if not text.startswith(ATTRIBUTION.decode())).encode()


def _take_identities(block: _Block) -> bool:
    """Whether there were any."""
    found = IDENTITY & block.keys()
    for name in found:
        del block[name]
    return bool(found)
