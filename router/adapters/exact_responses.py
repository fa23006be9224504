"""The chat that a worker makes of a `/v1/responses` request.

Follows vLLM 0.32 (`entrypoints/openai/responses/utils.py`): items become chat messages; an assistant's reasoning, text
and calls that follow each other are one message. What is not text, or is unlike what the worker's own types hold,
raises Unrenderable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from router.adapters.chat_messages import Unrenderable

RESPONSES_FIELDS = (
    "input", "instructions", "tools", "reasoning", "chat_template_kwargs", "truncation", "previous_input_messages",
)  # fmt: skip
"""Fields of the request that decide its prompt."""
_MESSAGE_KEYS = frozenset(("type", "role", "content", "id", "status"))
_UNFINISHED = ("in_progress", "incomplete")
"""Status of a last item that the worker would continue instead of answering."""

_Json = dict[str, Any]  # Any: decoded JSON of the client


def chat_of_responses(fields: Mapping[str, Any]) -> _Json:
    """Fields of the chat. Raises Unrenderable."""
    if fields.get("previous_input_messages"):
        raise Unrenderable("messages of before are given by other means")
    if fields.get("truncation", "disabled") != "disabled":
        raise Unrenderable("the prompt is truncated by the worker")
    instructions, given = fields.get("instructions"), fields.get("input")
    turns: list[_Json] = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(given, str):
        turns.append({"role": "user", "content": given})
    else:
        _add_items(turns, given)
    chat: _Json = {"messages": turns, "chat_template_kwargs": fields.get("chat_template_kwargs")}
    if fields.get("tools"):
        chat["tools"] = [_tool(tool) for tool in fields["tools"]]
    effort = (fields.get("reasoning") or {}).get("effort")
    return chat if effort is None else chat | {"reasoning_effort": effort}


def _add_items(turns: list[_Json], items: Any) -> None:
    """Any: a client's JSON, as elsewhere here."""
    if not isinstance(items, list) or not items:
        raise Unrenderable("no input")
    if items[-1].get("status") in _UNFINISHED:
        raise Unrenderable("the final message is continued")
    begun = len(turns)
    for item in items:
        # Only what this request's own items made is joined, never the instructions.
        last = turns[-1] if len(turns) > begun and turns[-1]["role"] == "assistant" else None
        turn = _turn(item, last)
        if turn is not None:
            turns.append(turn)


def _turn(item: _Json, last: _Json | None) -> _Json | None:
    """The item's message; None when it became part of `last`, the assistant's message right before it."""
    kind = item.get("type", "message")
    if kind == "function_call":
        call = _call(item)
        if last is None:
            return {"role": "assistant", "tool_calls": [call]}
        last.setdefault("tool_calls", []).append(call)
        return None
    if kind == "reasoning":
        return _joined(last, "reasoning", _reasoning(item))
    if kind == "function_call_output":
        if not isinstance(item.get("output"), str) or not isinstance(item.get("call_id"), str):
            raise Unrenderable("a tool result is not text")
        return {"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]}
    if kind != "message" or not isinstance(item.get("role"), str) or not item.keys() <= _MESSAGE_KEYS:
        raise Unrenderable("an item is of another kind")
    if item["role"] == "assistant":
        return _joined(last, "content", _assistants(item.get("content")))
    return {"role": item["role"], "content": _parts(item.get("content"))}


def _joined(last: _Json | None, name: str, text: str) -> _Json | None:
    if last is not None and last.get(name) is None:
        last[name] = text
        return None
    return {"role": "assistant", name: text}


def _call(item: _Json) -> _Json:
    name, arguments, call_id = item.get("name"), item.get("arguments"), item.get("call_id")
    if item.get("namespace") or not all(isinstance(value, str) for value in (name, arguments, call_id)):
        raise Unrenderable("a tool call is not a plain function call")
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _reasoning(item: _Json) -> str:
    summary, content = item.get("summary"), item.get("content")
    if item.get("encrypted_content") or not isinstance(summary, list):
        raise Unrenderable("reasoning is not text")
    return _first_text(content or summary) if content or summary else ""


def _assistants(content: Any) -> str:
    """The worker takes the first part of it only."""
    return content if isinstance(content, str) else _first_text(content)


def _first_text(parts: Any) -> str:
    text = parts[0].get("text") if isinstance(parts, list) and parts and isinstance(parts[0], dict) else None
    if not isinstance(text, str):
        raise Unrenderable("a content part is not text")
    return text


def _parts(content: Any) -> str | list[_Json]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Unrenderable("content is neither text nor parts")
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "input_text" or part.keys() != {"type", "text"}:
            raise Unrenderable("a content part is not text")
    return [{"type": "text", "text": part["text"]} for part in content]


def _tool(tool: _Json) -> _Json:
    if tool.get("type") != "function":
        raise Unrenderable("a tool is not a function")
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}
