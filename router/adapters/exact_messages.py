"""The chat that a worker makes of a `/v1/messages` request.

Follows vLLM 0.32 (`entrypoints/anthropic/serving.py`): blocks become chat messages, tool results go in front of the
message that carries them, attribution lines and redacted thinking are left out. What is not text, or depends on more
than the request, raises Unrenderable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from router.adapters.chat_messages import ATTRIBUTION_HEADER, Unrenderable

MESSAGES_FIELDS = ("messages", "system", "tools", "thinking", "output_config", "chat_template_kwargs")
"""Fields of the request that decide its prompt."""

_Json = dict[str, Any]  # Any: decoded JSON of the client


def chat_of_messages(fields: Mapping[str, Any], *, merges_system: bool, disabled_effort: str) -> _Json:
    """Fields of the chat. `merges_system`: system messages amid the others join the first one. `disabled_effort`: the
    reasoning effort that thinking `disabled` stands for. Raises Unrenderable."""
    messages = fields.get("messages")
    if not isinstance(messages, list):
        raise Unrenderable("messages are not a list")
    system = _system_texts(fields.get("system"))
    if merges_system:
        system += [text for message in messages if message.get("role") == "system" and (text := _inline(message))]
    turns: list[_Json] = [{"role": "system", "content": "".join(system)}] if system else []
    for message in messages:
        if message.get("role") != "system":
            turns += _turns(message)
        elif not merges_system and (text := _inline(message)):
            turns.append({"role": "system", "content": text})
    chat: _Json = {"messages": turns, "chat_template_kwargs": fields.get("chat_template_kwargs")}
    if fields.get("tools") is not None:
        chat["tools"] = [_tool(tool) for tool in fields["tools"]]
    effort = (fields.get("output_config") or {}).get("effort")
    if (fields.get("thinking") or {}).get("type") == "disabled":
        effort = disabled_effort
    return chat if effort is None else chat | {"reasoning_effort": effort}


def _system_texts(system: Any) -> list[str]:
    """Any: a client's JSON, as elsewhere here."""
    if isinstance(system, str):
        return [system] if system else []
    return _texts(system or [])


def _inline(message: _Json) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return "" if content.startswith(ATTRIBUTION_HEADER) else content
    return "".join(_texts(content or []))


def _texts(blocks: list[_Json]) -> list[str]:
    if any(block.get("type") != "text" for block in blocks):
        raise Unrenderable("a system message is not text")
    texts = [block.get("text") or "" for block in blocks]
    return [text for text in texts if text and not text.startswith(ATTRIBUTION_HEADER)]


def _turns(message: _Json) -> list[_Json]:
    """The message, behind the tool results it carries; a user's message without anything else is none."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant"):
        raise Unrenderable("a message has another role")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise Unrenderable("content is neither text nor blocks")
    results: list[_Json] = []
    parts: list[_Json] = []
    calls: list[_Json] = []
    thoughts: list[str] = []
    for block in content:
        kind = block.get("type")
        if kind == "text":
            parts += [{"type": "text", "text": block["text"]}] if block.get("text") else []
        elif kind == "thinking":
            thoughts += [block["thinking"]] if block.get("thinking") is not None else []
        elif kind == "tool_use":
            calls.append(_call(block))
        elif kind == "tool_result" and role == "user":
            results.append(_result(block))
        elif kind != "redacted_thinking":
            raise Unrenderable("a content block is not text")
    turn: _Json = {"role": role}
    if thoughts:
        turn["reasoning"] = "".join(thoughts)
    if calls:
        turn["tool_calls"] = calls
    if parts:
        turn["content"] = parts[0]["text"] if len(parts) == 1 else parts
    return [*results, turn] if parts or role == "assistant" else results


def _call(block: _Json) -> _Json:
    if not block.get("id"):
        raise Unrenderable("a tool call gets its id from the worker's clock")
    function = {"name": block.get("name") or "", "arguments": json.dumps(block.get("input") or {})}
    return {"id": block["id"], "type": "function", "function": function}


def _result(block: _Json) -> _Json:
    content = block.get("content")
    if isinstance(content, list):
        if any(not isinstance(part, dict) or part.get("type") != "text" for part in content):
            raise Unrenderable("a tool result is not text")
        content = "\n".join(part.get("text", "") for part in content)
    return {"role": "tool", "tool_call_id": block.get("tool_use_id") or "", "content": content or ""}


def _tool(tool: _Json) -> _Json:
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        raise Unrenderable("a tool has no input schema")
    function = {"name": tool.get("name"), "description": tool.get("description")}
    function["parameters"] = schema if "type" in schema else {**schema, "type": "object"}
    return {"type": "function", "function": function | {name: tool.get(name) for name in ("strict", "defer_loading")}}
