"""A chat as it came: where its messages end in the bytes, and the fields beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from router.adapters.chat_template import CHAT_FIELDS

_WHOLE_ONLY: Final = frozenset(
    ("chat_template", "continue_final_message", "add_special_tokens", "truncate_prompt_tokens")
)
"""With one of these a prompt is read whole."""
_BESIDE: Final = tuple(name for name in CHAT_FIELDS if name != "messages" and name not in _WHOLE_ONLY)
_SPACE: Final = b" \t\r\n"
_BETWEEN: Final = b"," + _SPACE

_decode_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode


def raw_messages(raws: Mapping[str, Any]) -> memoryview | None:
    """The messages' JSON from the opening bracket to the closing one; None where the prompt has to be read whole. Any:
    `msgspec.Raw`, bytes or a memoryview, JSON that has been checked."""
    raw = raws.get("messages")
    if raw is None or type(raw) is list or not _WHOLE_ONLY.isdisjoint(raws):
        return None
    view = memoryview(raw)
    return view if view and view[0] == ord("[") and view[-1] == ord("]") else None


def beside(raws: Mapping[str, Any]) -> list[bytes]:
    """Names and JSON of the other fields that decide the prompt, in a fixed order. Any: as above."""
    return [part for name in _BESIDE if name in raws for part in (name.encode(), bytes(raws[name]))]


def message_ends(raw: memoryview) -> list[int]:
    """Where each message ends, in bytes of the JSON."""
    data, place, found = bytes(raw), 1, []
    for message in _decode_raws(raw):
        while data[place] in _BETWEEN:
            place += 1
        place += memoryview(message).nbytes
        found.append(place)
    return found


def messages_behind(raw: memoryview, end: int) -> list[Any] | None:
    """The messages behind the one that ends at `end`, decoded. None where nothing of the kind follows."""
    rest = bytes(raw[end:]).lstrip(_SPACE)
    if rest == b"]":
        return []
    return msgspec.json.decode(b"[" + rest[1:]) if rest[:1] == b"," else None


def last_end(raw: memoryview) -> int:
    """Where the last message ends."""
    return len(bytes(raw[:-1][-64:]).rstrip(_SPACE)) + max(0, len(raw) - 65)
