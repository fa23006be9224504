"""From segments and values to the prompt: static, then semi-static, then dynamic, with stable serialisation (S4.4).

    {name}      is replaced by the value of that name; {{name}} stands for the text {name}
    values      texts go in as they are; JSON with sorted keys and no spaces, tools in the order of names
    segments    are joined by one line break, so that none of them needs white space at its ends

Equal values give equal bytes, whatever order a client's library writes them in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.errors import FieldError, Invalid
from controlplane.prompts.segments import KINDS, Segment

JOINT = "\n"
PLACEHOLDER = re.compile(r"\{\{([a-z_][a-z0-9_]{0,63})\}\}|\{([a-z_][a-z0-9_]{0,63})\}")
"""Group 1: escaped; group 2: the name of a value."""
VALUES_MAX = 200
RENDERED_CHARS_MAX = 4_000_000


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    kind: str
    text: str
    start: int
    """Characters before it in the prompt, the joints included."""


@dataclass(frozen=True, slots=True)
class Rendered:
    text: str
    parts: list[Part]

    def stable_text(self) -> str:
        """What every request of the template begins with: the static parts, with the joint behind them."""
        static = [part.text for part in self.parts if part.kind == "static"]
        return "".join(text + JOINT for text in static) if len(static) < len(self.parts) else JOINT.join(static)


def render(segments: Sequence[Segment], values: Mapping[str, Any]) -> Rendered:
    """The whole prompt. Raises Invalid naming values that are missing, unknown or too large."""
    if len(values) > VALUES_MAX:
        raise Invalid.field("values", f"At most {VALUES_MAX} values.")
    wanted = names_in(segments)
    errors = [
        FieldError(field=f"values.{name}", message=f"The template asks for {name}.") for name in wanted - set(values)
    ]
    errors += [
        FieldError(field=f"values.{name}", message="The template has no such placeholder.")
        for name in set(values) - wanted
    ]
    if errors:
        raise Invalid(errors[0]["message"], errors=sorted(errors, key=lambda error: error["field"]))
    texts = {name: serialised(value) for name, value in values.items()}
    return assembled(segments, texts)


def assembled(segments: Sequence[Segment], texts: Mapping[str, str] | None = None) -> Rendered:
    """In the order that caches like. Without `texts`, placeholders stay as they are written."""
    ordered = sorted(segments, key=lambda segment: KINDS.index(segment["kind"]))
    parts: list[Part] = []
    start = 0
    for segment in ordered:
        if start + filled_length(segment["text"], texts or {}) > RENDERED_CHARS_MAX:
            raise Invalid.field("values", f"The prompt would have more than {RENDERED_CHARS_MAX:,} characters.")
        text = segment["text"] if texts is None else filled(segment["text"], texts)
        parts.append(Part(segment["name"], segment["kind"], text, start))
        start += len(text) + len(JOINT)
    return Rendered(JOINT.join(part.text for part in parts), parts)


def filled_length(text: str, texts: Mapping[str, str]) -> int:
    """Characters of the filled text at most, told before it is made: a value may be asked for many times."""
    return len(text) + sum(len(texts.get(found[2], "")) for found in PLACEHOLDER.finditer(text) if found[2])


def filled(text: str, texts: Mapping[str, str]) -> str:
    return PLACEHOLDER.sub(lambda found: f"{{{found[1]}}}" if found[1] else texts[found[2]], text)


def names_in(segments: Sequence[Segment]) -> set[str]:
    """Names of the values that the template asks for."""
    return {found[2] for segment in segments for found in PLACEHOLDER.finditer(segment["text"]) if found[2]}


def serialised(value: Any) -> str:
    """Any: JSON. A text as it is; everything else in the one spelling of its value."""
    if isinstance(value, str):
        return value
    return json.dumps(stable(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def stable(value: Any) -> Any:
    """Lists of tools in the order of their names; other lists keep theirs, since order is their meaning."""
    if isinstance(value, dict):
        return {key: stable(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    items = [stable(item) for item in value]
    names = [tool_name(item) for item in items]
    if len(items) < 2 or any(name is None for name in names):
        return items
    return [item for _, item in sorted(zip(names, items, strict=True), key=lambda pair: str(pair[0]))]


def tool_name(item: Any) -> str | None:
    """Of a tool in OpenAI's or Anthropic's form, None for anything else."""
    if not isinstance(item, dict):
        return None
    inner = item.get("function") if item.get("type") == "function" else item
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        return None
    is_tool = inner is not item or "input_schema" in inner or "parameters" in inner
    return str(inner["name"]) if is_tool else None
