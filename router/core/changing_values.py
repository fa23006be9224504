"""Texts that look as if they were different in each request: clocks, ids, random values. Where, never what.

Dates alone are fine ("valid from 2024-05-01" stays as it is): a clock is a date with a time of day, or a date or time
behind words that mean the present. Repeats are bounded, so that no text costs more than its length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}\.?"
_DATE = (
    r"(?:\d{4}-\d{2}-\d{2}|\d{1,2}[./]\d{1,2}[./]\d{4}"
    rf"|\d{{1,2}}\.? {_MONTH} \d{{4}}|{_MONTH} \d{{1,2}},? \d{{4}})"
)
_TIME = r"\d{1,2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?: ?[ap]m)?"
_DAY = r"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"
_EPOCH = r"1[5-9]\d{8}(?:\d{3})?"
_PRESENT = (
    r"(?:(?:current|today'?s|present|local|system)[ _-]?(?:date|time|day|datetime|timestamp)"
    r"|today is|now is|it is now|right now it is|timestamp|generated at|as of now)"
)
_ID_NAMES = r"(?:request|trace|span|correlation|session|conversation|message|run|thread|job)"

CLOCK = re.compile(
    rf"{_DATE}(?:T|,? (?:at )?){_TIME}"
    rf"|\b{_PRESENT}\b\W{{0,4}}(?:is\W{{1,3}})?(?:{_DAY}|{_DATE}|{_TIME}|{_EPOCH})"
    rf"|\b(?:ts|time|epoch)\W{{1,4}}{_EPOCH}\b|\b1[5-9]\d{{11}}\b",
    re.IGNORECASE,
)
UUID = re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE)
NAMED_ID = re.compile(rf"\b{_ID_NAMES}[ _-]?id\b\s{{0,3}}[:=#]\s{{0,3}}[\"']?([\w-]{{1,128}})", re.IGNORECASE)
PREFIXED_ID = re.compile(r"\b(?:req|trace|sess|msg|run|thread|chatcmpl|resp|call)[_-]([A-Za-z0-9]{8,64})\b")
ULID = re.compile(r"\b[0-7][0-9A-HJKMNP-TV-Z]{25}\b")
WORD = re.compile(r"(?<![\w+/=-])[A-Za-z0-9+/_=-]{16,512}(?![\w+/=-])")

PLACES_MAX = 20
"""Of one kind: a text full of ids needs no longer list, and takes no longer."""
HEX_CHARS_MIN = 16
RANDOM_CHARS_MIN = 24
CHANGES_SHARE_MIN = 0.3
"""Changes between lower case, upper case and digits at each third character: words and paths have a few."""


Kind = Literal["clock", "uuid", "request_id", "hash"]


@dataclass(frozen=True, slots=True)
class Changing:
    kind: Kind
    start: int
    """Character where it begins."""


def changing_values(text: str) -> Iterator[Changing]:
    """In the order of kinds; a place that fits several counts as the first of them."""
    taken: list[tuple[int, int]] = []
    for kind, pattern, fits in _KINDS:
        places = 0
        for found in pattern.finditer(text):
            if places == PLACES_MAX:
                break
            span = found.span()
            if any(start < span[1] and span[0] < end for start, end in taken) or not fits(found):
                continue
            taken.append(span)
            places += 1
            yield Changing(kind, span[0])


def looks_random(word: str) -> bool:
    """Hexadecimal with digits and letters, or letters of both cases and digits thoroughly mixed."""
    core = word.strip("=-_")
    if len(core) >= HEX_CHARS_MIN and re.fullmatch(r"[0-9a-f]+|[0-9A-F]+", core):
        return any(char.isdigit() for char in core) and any(char.isalpha() for char in core)
    if len(core) < RANDOM_CHARS_MIN:
        return False
    kinds = [_char_kind(char) for char in core]
    changes = sum(one != other for one, other in pairwise(kinds))
    return {"lower", "upper", "digit"} <= set(kinds) and changes >= CHANGES_SHARE_MIN * len(core)


def _char_kind(char: str) -> str:
    return "digit" if char.isdigit() else "upper" if char.isupper() else "lower" if char.islower() else "sign"


def _has_digit(found: re.Match[str]) -> bool:
    return any(char.isdigit() for char in found[1])


def _always(found: re.Match[str]) -> bool:
    return True


_KINDS: Final[tuple[tuple[Kind, re.Pattern[str], Callable[[re.Match[str]], bool]], ...]] = (
    ("request_id", NAMED_ID, _has_digit),
    ("uuid", UUID, _always),
    ("request_id", PREFIXED_ID, _has_digit),
    ("request_id", ULID, lambda found: not found[0].isalpha()),
    ("clock", CLOCK, _always),
    ("hash", WORD, lambda found: looks_random(found[0])),
)
