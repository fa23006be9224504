"""Messages and tools of a chat request as vLLM hands them to the chat template, which decides the prompt's every token.

Follows vLLM 0.32 (`renderers/chat_utils.py`, `ChatCompletionRequest`): text parts are joined by newlines unless the
template walks through parts itself, tool-call arguments are parsed, tools carry exactly the known keys with nulls,
a developer's words become the system's where the template knows no developer. What the worker would refuse or what is
not text raises Unrenderable; the request itself is forwarded as sent either way.
"""

from __future__ import annotations

import json
from typing import Any, Literal

ContentFormat = Literal["string", "openai"]
"""How the template takes a message's content: as one string, or as a list of typed parts."""

_PART_TEXT = {
    "text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking",
}  # fmt: skip
"""Part type → the key of its text."""
_PART_KEYS_DROPPED = frozenset(("type", "text", "refusal", "thinking", "closed"))
ATTRIBUTION_HEADER = "x-anthropic-billing-header"
"""First line of a system part that vLLM drops: it differs on every request."""

_Json = dict[str, Any]  # Any: decoded JSON of the client


class Unrenderable(ValueError):
    """The prompt cannot be known here. `reason` names the cause and never quotes the request."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def conversation(messages: list[_Json], *, content_format: ContentFormat, knows_developer: bool) -> list[_Json]:
    """What the template iterates over. Raises Unrenderable."""
    if not messages:
        raise Unrenderable("no messages")
    turns = [_turn(message, content_format) for message in messages]
    if not knows_developer and any(turn["role"] == "developer" for turn in turns):
        return _system_first([_as_system(turn) for turn in turns])
    return turns


def tool_schemas(tools: list[_Json] | None) -> list[_Json] | None:
    """Tools with the keys, order and nulls that the worker's own model gives them. Raises Unrenderable."""
    if tools is None:
        return None
    if not tools:
        raise Unrenderable("tools are empty")
    return [_tool(tool) for tool in tools]


def _turn(message: _Json, content_format: ContentFormat) -> _Json:
    role = message.get("role")
    if not isinstance(role, str):
        raise Unrenderable("a message has no role")
    turn: _Json = {"role": role, "content": _content(message, role, content_format)}
    if role == "assistant":
        _add_calls(turn, message)
        reasoning = message.get("reasoning")
        if reasoning is None:
            reasoning = message.get("reasoning_content")
        if reasoning is not None:
            turn["reasoning"] = turn["reasoning_content"] = reasoning
    elif role == "tool" and "tool_call_id" in message:
        turn["tool_call_id"] = message["tool_call_id"]
    if isinstance(message.get("name"), str):
        turn["name"] = message["name"]
    if role == "developer":
        turn["tools"] = message.get("tools")
    return turn


def _content(message: _Json, role: str, content_format: ContentFormat) -> str | list[_Json]:
    content = message.get("content")
    if content is None and (role == "assistant" or "content" not in message):
        content = []
    if isinstance(content, str):
        # The usual case, without the list that it stands for.
        if content_format == "string" and not (role == "system" and content.startswith(ATTRIBUTION_HEADER)):
            return content
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise Unrenderable("content is neither text nor parts")
    parts = [_part(part) for part in content]
    if role == "system":
        parts = _without_attribution(parts)
    if content_format == "string":
        return "\n".join(part["text"] for part in parts if part["text"])
    return "\n".join(part["text"] for part in parts) if role == "tool" else parts


def _part(part: Any) -> _Json:
    """Any: an element of a client's JSON list."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get(_PART_TEXT[kind]) if kind in _PART_TEXT else None
    if not isinstance(text, str) or "uuid" in part:
        raise Unrenderable("a content part is not text")
    extra = {key: value for key, value in part.items() if key not in _PART_KEYS_DROPPED}
    return {"type": "text", "text": text, **extra}


def _without_attribution(parts: list[_Json]) -> list[_Json]:
    kept = []
    for part in parts:
        text = part["text"]
        if text.startswith(ATTRIBUTION_HEADER):
            text = text.partition("\n")[2]
            if not text:
                continue
        kept.append({**part, "text": text})
    return kept


def _add_calls(turn: _Json, message: _Json) -> None:
    calls = message.get("tool_calls")
    if not calls:
        return
    if not isinstance(calls, list):
        raise Unrenderable("tool_calls is not a list")
    turn["tool_calls"] = [_call(call) for call in calls]


def _call(call: Any) -> _Json:
    """Known keys first, in the order of the worker's type, then the client's others. Any: as `_part`."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type") != "function" or not isinstance(call.get("id"), str):
        raise Unrenderable("a tool call is not a function call")
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not isinstance(arguments, str):
        raise Unrenderable("a tool call lacks name or arguments")
    ordered = {**function, "arguments": _arguments(arguments), "name": name}
    function = {"arguments": ordered.pop("arguments"), "name": ordered.pop("name"), **ordered}
    others = {key: value for key, value in call.items() if key not in ("id", "function", "type")}
    return {"id": call["id"], "function": function, "type": "function", **others}


def _arguments(text: str) -> _Json:
    """Parsed; an empty object where it is no JSON object."""
    try:
        parsed = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _as_system(turn: _Json) -> _Json:
    if turn["role"] != "developer":
        return turn
    return {key: value for key, value in turn.items() if key != "tools"} | {"role": "system"}


def _system_first(turns: list[_Json]) -> list[_Json]:
    """All system turns as one in front, unless the only one is there already."""
    places = [place for place, turn in enumerate(turns) if turn["role"] == "system"]
    if places == [0]:
        return turns
    texts = [text for place in places if (text := _joined(turns[place]["content"]))]
    others = [turn for turn in turns if turn["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others]


def _joined(content: str | list[_Json]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _tool(tool: Any) -> _Json:
    """Any: as `_part`."""
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Unrenderable("a tool has no function name")
    if tool.get("type", "function") != "function":
        raise Unrenderable("a tool is not a function")
    deferred = tool.get("defer_loading")
    schema = {key: function.get(key) for key in ("name", "description", "parameters")}
    later = {"strict": function.get("strict"), "defer_loading": function.get("defer_loading", deferred)}
    schema |= {key: value for key, value in later.items() if value is not None}
    known = {"type": "function", "function": schema}
    return known if deferred is None else known | {"defer_loading": deferred}
