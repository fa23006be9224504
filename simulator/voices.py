"""Answers of `/v1/messages`, `/v1/responses` and `/v1/embeddings` in the shape of a vLLM 0.32 worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from simulator.answers import AnswerFrame, Usage

Event = dict[str, Any]
"""A stream event; its `type` is its name."""
EMBEDDING_DIMENSIONS = 64


class Voice(Protocol):
    """How one endpoint says what the model says."""

    early: bool
    """Whether the stream opens before the prompt is computed."""

    def opening(self, prompt_tokens: int) -> list[Event]: ...

    def spoken(self, text: str) -> list[Event]: ...

    def closing(self, usage: Usage, reason: str) -> list[Event]: ...

    def whole(self, text: str, usage: Usage, reason: str) -> dict[str, Any]: ...


@dataclass(slots=True)
class MessagesVoice:
    frame: AnswerFrame
    early: bool = False

    def opening(self, prompt_tokens: int) -> list[Event]:
        usage = {"input_tokens": prompt_tokens, "output_tokens": 0}
        message = {**self._message([], None), "usage": usage}
        start = {"type": "content_block_start", "content_block": {"type": "text", "text": ""}, "index": 0}
        return [{"type": "message_start", "message": message}, start]

    def spoken(self, text: str) -> list[Event]:
        return [{"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}, "index": 0}]

    def closing(self, usage: Usage, reason: str) -> list[Event]:
        delta = {"stop_reason": _STOP_REASONS[reason], "stop_sequence": None}
        return [
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": delta, "usage": _messages_usage(usage)},
            {"type": "message_stop"},
        ]

    def whole(self, text: str, usage: Usage, reason: str) -> dict[str, Any]:
        message = self._message([{"type": "text", "text": text}], _STOP_REASONS[reason])
        return message | {"usage": _messages_usage(usage)}

    def _message(self, content: list[dict[str, Any]], reason: str | None) -> dict[str, Any]:
        frame = self.frame
        message = {"id": frame.id, "type": "message", "role": "assistant", "content": content, "model": frame.model}
        return message | {"stop_reason": reason, "stop_sequence": None}


@dataclass(slots=True)
class ResponsesVoice:
    frame: AnswerFrame
    early: bool = True
    _number: int = 0
    _said: list[str] = field(default_factory=list)

    def opening(self, prompt_tokens: int) -> list[Event]:
        response = self._response("in_progress", [], None)
        return self._numbered(
            {"type": "response.created", "response": response},
            {"type": "response.in_progress", "response": response},
        )

    def spoken(self, text: str) -> list[Event]:
        first = not self._said
        self._said.append(text)
        place = {"item_id": "msg_1", "output_index": 0}
        events: list[Event] = []
        if first:
            item = self._item("", "in_progress") | {"content": []}
            part = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
            events += [
                {"type": "response.output_item.added", "item": item, "output_index": 0},
                {"type": "response.content_part.added", "content_index": 0, "part": part, **place},
            ]
        events.append(
            {"type": "response.output_text.delta", "content_index": 0, "delta": text, "logprobs": [], **place}
        )
        return self._numbered(*events)

    def closing(self, usage: Usage, reason: str) -> list[Event]:
        text = "".join(self._said)
        place = {"content_index": 0, "item_id": "msg_1", "output_index": 0}
        item = self._item(text, "completed")
        response = self._response("completed" if reason == "stop" else "incomplete", [item], usage)
        return self._numbered(
            {"type": "response.output_text.done", "text": text, "logprobs": [], **place},
            {"type": "response.content_part.done", "part": item["content"][0], **place},
            {"type": "response.output_item.done", "item": item, "output_index": 0},
            {"type": "response.completed", "response": response},
        )

    def whole(self, text: str, usage: Usage, reason: str) -> dict[str, Any]:
        status = "completed" if reason == "stop" else "incomplete"
        return self._response(status, [self._item(text, "completed")], usage)

    def _numbered(self, *events: Event) -> list[Event]:
        out = []
        for event in events:
            out.append({**event, "sequence_number": self._number})
            self._number += 1
        return out

    def _item(self, text: str, status: str) -> dict[str, Any]:
        part: dict[str, Any] = {"annotations": [], "text": text, "type": "output_text", "logprobs": None}
        return {"id": "msg_1", "content": [part], "role": "assistant", "status": status, "type": "message"}

    def _response(self, status: str, output: list[dict[str, Any]], usage: Usage | None) -> dict[str, Any]:
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        frame = self.frame
        return {
            "id": frame.id, "created_at": frame.created, "incomplete_details": details, "instructions": None,
            "metadata": None, "model": frame.model, "object": "response", "output": output,
            "parallel_tool_calls": True, "temperature": 1.0, "tool_choice": "auto", "tools": [], "top_p": 1.0,
            "background": False, "previous_response_id": None, "service_tier": "auto", "status": status,
            "truncation": "disabled", "usage": None if usage is None else _responses_usage(usage), "user": None,
        }  # fmt: skip


def embeddings_answer(frame: AnswerFrame, prompts: list[list[int]]) -> dict[str, Any]:
    """Vectors made of the prompts' token ids, so that equal inputs have equal ones; cached tokens are not told."""
    data = [
        {"index": index, "object": "embedding", "embedding": _vector(prompt)} for index, prompt in enumerate(prompts)
    ]
    tokens = sum(len(prompt) for prompt in prompts)
    usage = {
        "prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }  # fmt: skip
    return {
        "id": frame.id, "object": "list", "created": frame.created, "model": frame.model, "data": data, "usage": usage,
    }  # fmt: skip


_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}


def _messages_usage(usage: Usage) -> dict[str, Any]:
    """`input_tokens` leave out what the cache gave or took."""
    if usage.cached_tokens is None:
        return {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
    created = usage.created_cache_tokens or 0
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens - created,
        "output_tokens": usage.completion_tokens,
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": usage.cached_tokens,
    }


def _responses_usage(usage: Usage) -> dict[str, Any]:
    details = {"cached_tokens": usage.cached_tokens or 0, "cache_write_tokens": usage.created_cache_tokens or 0}
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": details,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0, "tool_output_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _vector(tokens: list[int]) -> list[float]:
    sums = [0.0] * EMBEDDING_DIMENSIONS
    for place, token in enumerate(tokens):
        sums[(token + place) % EMBEDDING_DIMENSIONS] += 1.0
    length = sum(value * value for value in sums) ** 0.5 or 1.0
    return [value / length for value in sums]
