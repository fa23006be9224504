"""The rule of a prompt template's segments: static, then semi-static, then dynamic (S0.5). No database.

A prefix is shared only up to the first difference, so what changes least must come first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Literal, TypedDict

from controlplane.errors import FieldError

SegmentKind = Literal["static", "semi_static", "dynamic"]
KINDS: tuple[SegmentKind, ...] = ("static", "semi_static", "dynamic")
SEGMENTS_MAX = 64
SEGMENT_NAME_LENGTH_MAX = 100
SEGMENT_TEXT_LENGTH_MAX = 1_000_000
"""Characters, a 250k-token system prompt."""


class Segment(TypedDict):
    kind: SegmentKind
    name: str
    text: str


def segment_errors(segments: object) -> list[FieldError]:
    """Everything wrong with `segments`, each error at its segment: field `segments.2.kind`. Empty = fine."""
    if not isinstance(segments, list) or not segments:
        return [FieldError(field="segments", message="A template has at least one segment.")]
    if len(segments) > SEGMENTS_MAX:
        return [FieldError(field="segments", message=f"A template has at most {SEGMENTS_MAX} segments.")]
    errors = [error for index, segment in enumerate(segments) for error in _shape_errors(index, segment)]
    return errors or _name_errors(segments) + _order_errors(segments)


def digest_of(segments: Sequence[Segment]) -> str:
    """Hexadecimal SHA-256 of the canonical JSON: equal segments, equal digest."""
    return hashlib.sha256(json.dumps(segments, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _shape_errors(index: int, segment: object) -> list[FieldError]:
    if not isinstance(segment, dict) or set(segment) != {"kind", "name", "text"}:
        return [FieldError(field=f"segments.{index}", message="A segment has exactly: kind, name, text.")]
    errors = []
    if segment["kind"] not in KINDS:
        errors.append(FieldError(field=f"segments.{index}.kind", message=f"Kind must be one of: {', '.join(KINDS)}."))
    for key, length_max in (("name", SEGMENT_NAME_LENGTH_MAX), ("text", SEGMENT_TEXT_LENGTH_MAX)):
        if not isinstance(segment[key], str) or len(segment[key]) > length_max or (key == "name" and not segment[key]):
            message = f"{key.capitalize()} must be a text of at most {length_max:,} characters."
            errors.append(FieldError(field=f"segments.{index}.{key}", message=message))
    return errors


def _name_errors(segments: list[Segment]) -> list[FieldError]:
    names = [segment["name"] for segment in segments]
    return [
        FieldError(field=f"segments.{index}.name", message=f"Two segments are named {name!r}.")
        for index, name in enumerate(names)
        if name in names[:index]
    ]


def _order_errors(segments: list[Segment]) -> list[FieldError]:
    errors = []
    furthest = 0
    for index, segment in enumerate(segments):
        rank = KINDS.index(segment["kind"])
        if rank < furthest:
            message = (
                f"Segment {index + 1} ({segment['name']}) is {_spoken(KINDS[rank])} but comes after a "
                f"{_spoken(KINDS[furthest])} one. Move it up: what changes least comes first."
            )
            errors.append(FieldError(field=f"segments.{index}.kind", message=message))
        furthest = max(furthest, rank)
    return errors


def _spoken(kind: str) -> str:
    return kind.replace("_", "-")
