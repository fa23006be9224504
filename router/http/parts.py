"""Content parts of a message: text to hash, media to check and mark, identities to take out."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from router.http.canonical import PART_BREAK, media_mark
from router.http.depth import check_depth
from router.http.errors import BadRequest
from router.http.fields import NEVER_FORWARDED
from router.http.media import check_media_url

IDENTITY = NEVER_FORWARDED | {"uuid"}
"""A part's `uuid` names an entry of the worker's media cache, which no salt separates (S2)."""
TEXT_PARTS = frozenset(("text", "input_text", "output_text"))

_decode_any = msgspec.json.decode


class PartsRead(NamedTuple):
    text: bytes
    """Canonical, media as marks."""
    media: bool
    dirty: bool
    """An identity was taken out: the parts must be encoded again."""


def read_parts(parts: list[dict[str, Raw]], *, param: str) -> PartsRead:
    """Raises BadRequest. Takes identities out of `parts` themselves."""
    out: list[bytes] = []
    media = dirty = False
    for part in parts:
        for name in IDENTITY & part.keys():
            del part[name]
            dirty = True
        values = {name: decode_checked(value, param=param) for name, value in part.items()}
        text = part_text(values, param=param)
        media = media or text is None
        out.append(media_mark(values) if text is None else text)
    return PartsRead(PART_BREAK.join(out), media, dirty)


def part_text(values: dict[str, Any], *, param: str) -> bytes | None:
    """Text of one decoded part, None for media, whose address is checked. Raises BadRequest. Any: client's JSON."""
    kind, text = values.get("type"), values.get("text")
    if kind in TEXT_PARTS and type(text) is str:
        return text.encode()
    if kind == "refusal" and type(values.get("refusal")) is str:
        return str(values["refusal"]).encode()
    if type(kind) is not str or kind in TEXT_PARTS:
        raise BadRequest("A content part needs a type, and a text part its text.", param=param)
    if kind.endswith("_embeds"):
        raise BadRequest("Embeddings are not taken as content parts.", param=param)
    check_media_url(values, param=param)
    return None


def decode_checked(raw: Raw, *, param: str) -> Any:
    """Any: a client's JSON, no deeper than the limit. Raises BadRequest."""
    check_depth(param, raw)
    try:
        return _decode_any(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f"{param}: {error}", param=param) from None
