"""How deep a JSON value is nested, without decoding it."""

from __future__ import annotations

from msgspec import Raw

from router.http.errors import BadRequest

DEPTH_MAX = 64
_IGNORED = bytes(sorted(set(range(256)) - set(b'{[]}"\\')))
_QUOTE, _BACKSLASH, _OPENING = 0x22, 0x5C, b"{["


def check_depth(name: str, raw: Raw, limit: int = DEPTH_MAX) -> None:
    """Raises BadRequest above `limit` levels. Few brackets cannot be deep, so most values need no scan."""
    data = bytes(raw)
    if data.count(b"{") + data.count(b"[") <= limit:
        return
    # An escaped character other than quote and backslash is gone after the filter, so the escape must go first.
    data = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _IGNORED)
    depth, in_text = 0, False
    for byte in data:
        if byte == _QUOTE:
            in_text = not in_text
        elif in_text or byte == _BACKSLASH:
            continue
        elif byte in _OPENING:
            depth += 1
            if depth > limit:
                raise BadRequest(f"{name} is nested deeper than {limit} levels.", param=name, code="invalid_json")
        else:
            depth -= 1
