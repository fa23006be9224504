"""What `plain_chat` decodes. Its Structs stand apart: msgspec's metaclass makes them, so they stay interpreted."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from router.http.fields import Count, Flag, Int, Model, Number


class PlainMessage(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    role: str
    content: str


class PlainFields(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    model: Model
    messages: list[PlainMessage]
    max_tokens: Count | UnsetType = UNSET
    max_completion_tokens: Count | UnsetType = UNSET
    temperature: Number | UnsetType = UNSET
    top_p: Number | UnsetType = UNSET
    seed: Int | UnsetType = UNSET
    stream: Flag | UnsetType = UNSET


decode_plain = msgspec.json.Decoder(PlainFields).decode
decode_raws = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
