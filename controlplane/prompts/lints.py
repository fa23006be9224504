"""What in a template keeps its prefix from being reused, each with code, severity, place and what to do (S0.5, S0.6).

| code | severity | what |
| --- | --- | --- |
| dynamic_before_static | error | what changes often stands before what changes less: everything behind it is lost |
| clock_early | error | a time of day, a time stamp or "today is …" in a static or semi-static segment |
| uuid_early, request_id_early | error | an id of one request or session there |
| hash_early | warning | a long random-looking value there |
| placeholder_early | error | a placeholder named for a clock, an id or the turn in a static segment |
| json_order, tool_order | warning | JSON whose keys, or tools whose names, are not sorted: libraries differ in them |
| edge_whitespace | warning | white space at a segment's ends: invisible, and it joins the tokens of its neighbour |
| invisible_character | warning | zero-width and non-breaking characters, carriage returns |
| open_boundary | info | the last token of the static part depends on what follows (pool's tokenizer only) |
| shorter_than_block | warning | the static part fills no whole block: nothing of it is ever cached |
| not_block_aligned | info | tokens behind the last whole block are computed each time |

Messages and fixes name places, never the text found there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from controlplane.prompts.rendering import PLACEHOLDER, assembled, tool_name
from controlplane.prompts.segments import KINDS, Segment
from controlplane.prompts.tokens import TokenCounter
from router.core.changing_values import changing_values

Severity = Literal["error", "warning", "info"]
LINTS_MAX = 200
"""Of one template; of more, errors are kept first."""
PLACES_MAX = 20
"""Of one kind in one segment."""
JSON_CHARS_MIN = 100
"""Shorter JSON in a text is an example by hand, not data that a library wrote."""
JSON_TRIES_MAX = 200


@dataclass(frozen=True, slots=True)
class Lint:
    code: str
    severity: Severity
    segment: int | None
    """Index of the segment; None = the template as a whole."""
    position: int | None
    """Character in the segment's text where it begins."""
    message: str
    fix: str


@dataclass(frozen=True, slots=True)
class SegmentTokens:
    name: str
    kind: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Report:
    lints: list[Lint]
    segments: list[SegmentTokens]
    stable_tokens: int
    """Tokens that every request of the template begins with: the static part up to its first placeholder."""
    stable_blocks: int
    block_size: int
    tokenizer: str
    """The pool's, or `approximate`."""
    exact: bool

    @property
    def errors(self) -> list[Lint]:
        return [lint for lint in self.lints if lint.severity == "error"]


def report_on(segments: Sequence[Segment], counter: TokenCounter) -> Report:
    """Segments of valid shape, in any order."""
    lints = list(_lints(segments))
    stable = stable_prefix(segments)
    tokens = counter.count(stable)
    lints += _block_lints(stable, tokens, counter)
    return Report(
        lints=lints if len(lints) <= LINTS_MAX else sorted(lints, key=_rank)[:LINTS_MAX],
        segments=[SegmentTokens(each["name"], each["kind"], counter.count(each["text"])) for each in segments],
        stable_tokens=tokens,
        stable_blocks=tokens // counter.block_size,
        block_size=counter.block_size,
        tokenizer=counter.name,
        exact=counter.exact,
    )


def stable_prefix(segments: Sequence[Segment]) -> str:
    """The text that all requests share for certain: the static segments, up to the first placeholder."""
    text = assembled(segments).stable_text()
    first = next((found.start() for found in PLACEHOLDER.finditer(text) if found[2]), None)
    return text if first is None else text[:first]


def _rank(lint: Lint) -> int:
    return ("error", "warning", "info").index(lint.severity)


def _lints(segments: Sequence[Segment]) -> Iterator[Lint]:
    yield from _order(segments)
    for index, segment in enumerate(segments):
        if segment["kind"] != "dynamic":
            yield from _changing_values(index, segment["text"])
            yield from islice(_placeholders(index, segment), PLACES_MAX)
            yield from islice(_json(index, segment["text"]), PLACES_MAX)
        yield from islice(_edges(index, segment["text"]), PLACES_MAX)


def _order(segments: Sequence[Segment]) -> Iterator[Lint]:
    furthest = 0
    for index, segment in enumerate(segments):
        rank = KINDS.index(segment["kind"])
        if rank < furthest:
            kinds = KINDS[rank].replace("_", "-"), KINDS[furthest].replace("_", "-")
            yield Lint(
                "dynamic_before_static", "error", index, None,
                f"This {kinds[0]} segment comes after a {kinds[1]} one.",
                "Move it up: static, then semi-static, then dynamic.",
            )  # fmt: skip
        furthest = max(furthest, rank)


_FIX = "Leave it out of the prompt, or move it to the last dynamic segment."
_CHANGING: dict[str, tuple[Severity, str, str]] = {
    "clock": (
        "error", "A date or time of the present",
        "Move it to the last dynamic segment; the day is enough where hours do not matter.",
    ),
    "uuid": ("error", "A UUID", _FIX),
    "request_id": ("error", "The id of one request or session", _FIX),
    "hash": (
        "warning", "A random-looking value", "If it differs between requests, move it to the last dynamic segment.",
    ),
}  # fmt: skip


def _changing_values(index: int, text: str) -> Iterator[Lint]:
    for found in changing_values(text):
        severity, what, fix = _CHANGING[found.kind]
        message = f"{what} at character {found.start}: prompts that differ here share nothing behind it."
        yield Lint(f"{found.kind}_early", severity, index, found.start, message, fix)


_CHANGING_NAMES = re.compile(
    r"(?:^|_)(?:now|date|time|datetime|timestamp|clock|today|uuid|guid|nonce|random|seed|request_id|trace_id|span_id"
    r"|correlation_id|session_id|conversation_id|message_id|turn|question|query|user_input|user_message)(?:_|$)"
)


def _placeholders(index: int, segment: Segment) -> Iterator[Lint]:
    if segment["kind"] != "static":
        return
    for found in PLACEHOLDER.finditer(segment["text"]):
        if found[2] and _CHANGING_NAMES.search(found[2]):
            yield Lint(
                "placeholder_early", "error", index, found.start(),
                f"The placeholder {found[2]} changes with each request, but its segment is static.",
                "Move it to a dynamic segment.",
            )  # fmt: skip


_decoder = json.JSONDecoder()
_JSON_START = re.compile(r'\{\s*"|\[\s*\{')


def _json(index: int, text: str) -> Iterator[Lint]:
    position = 0
    for _ in range(JSON_TRIES_MAX):
        found = _JSON_START.search(text, position)
        if found is None:
            return
        position = found.start() + 1
        try:
            value, end = _decoder.raw_decode(text, found.start())
        except (ValueError, RecursionError):
            continue
        if end - found.start() >= JSON_CHARS_MIN:
            yield from _unstable(index, found.start(), value)
        position = end


def _unstable(index: int, position: int, value: Any) -> Iterator[Lint]:
    if _tools_unsorted(value):
        yield Lint(
            "tool_order", "warning", index, position, f"The tools in the JSON at character {position} are not sorted.",
            "Sort tools by name, or give them as a value: rendering sorts them.",
        )  # fmt: skip
    if _keys_unsorted(value):
        yield Lint(
            "json_order", "warning", index, position, f"Keys of the JSON at character {position} are not sorted.",
            "Write JSON with sorted keys, or give it as a value: rendering sorts them.",
        )  # fmt: skip


def _keys_unsorted(value: Any) -> bool:
    if isinstance(value, dict):
        return list(value) != sorted(value) or any(_keys_unsorted(item) for item in value.values())
    return isinstance(value, list) and any(_keys_unsorted(item) for item in value)


def _tools_unsorted(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_tools_unsorted(item) for item in value.values())
    if not isinstance(value, list):
        return False
    names = [tool_name(item) for item in value]
    known = [name for name in names if name is not None]
    return len(known) == len(names) and known != sorted(known)


_EDGE = re.compile(r"\A\s+|\s+\Z")
_INVISIBLE = re.compile(r"[\u00a0\u00ad\u200b-\u200f\u202a-\u202f\u2028\u2029\u2060-\u2064\ufeff\r]")


def _edges(index: int, text: str) -> Iterator[Lint]:
    for found in _EDGE.finditer(text):
        yield Lint(
            "edge_whitespace", "warning", index, found.start(),
            f"White space at the {'beginning' if found.start() == 0 else 'end'} of the segment.",
            "Remove it: segments are joined by one line break.",
        )  # fmt: skip
    for found in _INVISIBLE.finditer(text):
        yield Lint(
            "invisible_character", "warning", index, found.start(),
            f"An invisible character (U+{ord(found[0]):04X}) at character {found.start()}.",
            "Replace it by a plain space or line feed, or remove it.",
        )  # fmt: skip


PROBES = (*"aeinorst", "A", "7", "{", "é", "中")
"""What may follow the static part: the commonest letters, a digit, a bracket, other scripts. White space at the ends
is `edge_whitespace`."""


def _block_lints(stable: str, tokens: int, counter: TokenCounter) -> Iterator[Lint]:
    size = counter.block_size
    about = "" if counter.exact else "about "
    if tokens < size:
        yield Lint(
            "shorter_than_block", "warning", None, None,
            f"The static part has {about}{tokens} tokens, less than a block of {size}: nothing of it is ever cached.",
            "Put what all requests share into static segments in front.",
        )  # fmt: skip
    elif tokens % size:
        yield Lint(
            "not_block_aligned", "info", None, None,
            f"The static part ends {about}{tokens % size} tokens behind its last whole block of {size}.",
            f"These tokens are computed each time; {size - tokens % size} more would fill the block.",
        )  # fmt: skip
    if counter.exact and stable and _is_open(stable, counter):
        yield Lint(
            "open_boundary", "info", None, None,
            "The last token of the static part depends on what follows it.",
            "End the static part with a full stop or a heading; white space and half words join their successor.",
        )  # fmt: skip


def _is_open(stable: str, counter: TokenCounter) -> bool:
    tail = stable[-200:]
    ids = counter.ids(tail)
    return any(counter.ids(tail + probe)[: len(ids)] != ids for probe in PROBES)
