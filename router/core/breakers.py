"""Prefix breakers: prompts that are alike but for something that changes in front (S0.6). Never the text itself.

A few prompts a second are cut into lines; of each line a keyed hash and its length are kept, for a short while and in
this process only. A prompt is compared with the latest ones of its namespace and model:

    same   same   CHANGED   same   same   same          →  a break: what follows is shared text, and cannot be reused
    same   same   other     other                       →  none: conversations part where their texts do
    same   same   same      more                        →  none: the next turn

The kind of the change is guessed from the class of characters of the line that the present prompt has there. Lines end
at line breaks, at the separators of canonical text and at full stops. O(lines) a look; memory is bounded by
PROFILES_MAX × PROMPTS_KEPT × LINES_MAX hashes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import xxhash

from router.contract.telemetry import PrefixBreaks
from router.core.changing_values import changing_values

LOOKS_PER_S: Final = 5
"""A look takes 0.1 ms at 1 KB and 0.4 ms at HEAD_BYTES_MAX and beyond: two thousandths of a core at most."""
TEXT_BYTES_MIN: Final = 1024
"""Two text blocks: shorter prompts lose nothing to speak of."""
HEAD_BYTES_MAX: Final = 8192
LINE_BYTES_MIN: Final = 48
"""Shorter ones are joined with what follows: bounds the lines of a text."""
LINES_MAX: Final = 128
PROMPTS_KEPT: Final = 3
"""Of each namespace and model: templates that take turns are each compared with their own."""
PROFILES_MAX: Final = 500
SHARED_BYTES_MIN: Final = 512
"""Shared text behind a change that makes it a break: one text block."""
SHARED_SHARE_MIN: Final = 0.5
"""And this part of what follows the change."""
ROWS_MAX: Final = 200
_SEED_BITS: Final = (1 << 64) - 1

_BLANKS: Final = b" \t\r\n"
_LINE_END: Final = re.compile(rb"\n+|[\xf8-\xff]+|(?<=[.!?]) +")


class Line(NamedTuple):
    start: int
    """Byte in the text."""
    size: int
    exact: int
    """Keyed hash of its bytes."""
    bare: int
    """The same without white space: equal where only white space differs."""


class Break(NamedTuple):
    kind: str
    position_bytes: int
    lost_bytes: int


_Key = tuple[str, str]


class BreakerWatch:
    """`wants` and `look` for each finished request, `take` once a second."""

    def __init__(self, *, secret: bytes) -> None:
        """`secret`: at least 8 bytes, so that hashes of guessed lines tell nothing."""
        self._seed = int.from_bytes(secret[:8]) & _SEED_BITS
        self._profiles: dict[_Key, list[list[Line]]] = {}
        self._rows: dict[tuple[str, str, str, str], PrefixBreaks] = {}
        self._looks_left = LOOKS_PER_S

    def wants(self, text: bytes | None) -> bool:
        return self._looks_left > 0 and text is not None and len(text) >= TEXT_BYTES_MIN

    def look(self, text: bytes, *, namespace: str, pool: str, model: str, template: str) -> None:
        self._looks_left -= 1
        lines = self._lines(text)
        found = self._compare(lines, text, (namespace, model))
        self._count(namespace, pool, template, "", 0, 0)
        if found is not None:
            self._count(namespace, pool, template, found.kind, found.position_bytes, found.lost_bytes)

    def take(self) -> list[PrefixBreaks]:
        """What was counted since the last call; begins the next second."""
        rows, self._rows = list(self._rows.values()), {}
        self._looks_left = LOOKS_PER_S
        return rows

    def _lines(self, text: bytes) -> list[Line]:
        head, seed, digest = text[:HEAD_BYTES_MAX], self._seed, xxhash.xxh3_64_intdigest
        lines: list[Line] = []
        start = 0
        for end in [found.end() for found in _LINE_END.finditer(head)] + [len(head)]:
            if end - start < LINE_BYTES_MIN:
                continue
            if len(lines) >= LINES_MAX:
                break
            data = head[start:end]
            lines.append(Line(start, end - start, digest(data, seed), digest(data.translate(None, _BLANKS), seed)))
            start = end
        return lines

    def _compare(self, lines: list[Line], text: bytes, key: _Key) -> Break | None:
        """With the kept prompt that shares most; the present one is kept in place of the oldest, or of its like."""
        kept = self._profiles.pop(key, [])
        found = None
        if kept:
            nearest = max(kept, key=lambda other: _shared_bytes(lines, other))
            found = break_between(lines, nearest, text)
            if found is not None or _alike(lines, nearest):
                kept.remove(nearest)
        kept.append(lines)
        del kept[:-PROMPTS_KEPT]
        if len(self._profiles) >= PROFILES_MAX:
            del self._profiles[next(iter(self._profiles))]
        self._profiles[key] = kept
        return found

    def _count(self, namespace: str, pool: str, template: str, kind: str, position: int, lost: int) -> None:
        key = (namespace, pool, template, kind)
        row = self._rows.get(key)
        if row is None:
            if len(self._rows) >= ROWS_MAX:
                return
            row = self._rows[key] = PrefixBreaks(namespace, pool, template, kind, position)
        row.prompts += 1
        row.lost_bytes += lost
        row.position_bytes = min(row.position_bytes, position)


def break_between(lines: Sequence[Line], other: Sequence[Line], text: bytes) -> Break | None:
    """The break of a prompt against an earlier one; None where they part for good, or do not part."""
    at = _common_lines(lines, other)
    if at >= len(lines) or at >= len(other):
        return None
    behind = lines[at + 1 :]
    there = {line.exact for line in other[at + 1 :]}
    shared = sum(line.size for line in behind if line.exact in there)
    left = sum(line.size for line in behind)
    if shared < SHARED_BYTES_MIN or shared < SHARED_SHARE_MIN * left:
        return None
    return Break(_kind(lines[at], other[at], there, text), lines[at].start, shared)


def _kind(line: Line, before: Line, there: set[int], text: bytes) -> str:
    if line.bare == before.bare:
        return "whitespace"
    if line.exact in there:
        return "order"
    words = text[line.start : line.start + line.size].decode("utf-8", "replace")
    for found in changing_values(words):
        return found.kind
    return "number" if any(char.isdigit() for char in words) else "text"


def _common_lines(lines: Sequence[Line], other: Sequence[Line]) -> int:
    for index, (one, two) in enumerate(zip(lines, other, strict=False)):
        if one.exact != two.exact:
            return index
    return min(len(lines), len(other))


def _shared_bytes(lines: Sequence[Line], other: Sequence[Line]) -> int:
    there = {line.exact for line in other}
    return sum(line.size for line in lines if line.exact in there)


def _alike(lines: Sequence[Line], other: Sequence[Line]) -> bool:
    """Whether one goes on where the other ends: of a growing conversation the latest turn is kept."""
    return _common_lines(lines, other) >= min(len(lines), len(other)) - 1
