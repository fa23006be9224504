"""Answer bodies in the shape of a vLLM 0.32 worker: whole answers, stream chunks and usage blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FINGERPRINT = "vllm-0.32.0-5207e617"
VERSION = "0.32.0"


@dataclass(frozen=True, slots=True)
class AnswerFrame:
    """What all parts of one answer share."""

    id: str
    created: int
    """Unix seconds."""
    model: str
    chat: bool


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    """None = the worker does not report details: the field is null."""
    created_cache_tokens: int | None = None

    def counts(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
        }

    def whole(self) -> dict[str, Any]:
        details = None
        if self.cached_tokens is not None:
            details = {
                "cached_tokens": self.cached_tokens,
                "created_cache_tokens": self.created_cache_tokens,
                "multimodal_tokens": None,
            }
        return self.counts() | {"prompt_tokens_details": details, "completion_tokens_details": None}

    def streamed(self) -> dict[str, Any]:
        """Stream chunks leave out what is null."""
        if self.cached_tokens is None:
            return self.counts()
        details = {"cached_tokens": self.cached_tokens}
        if self.created_cache_tokens is not None:
            details["created_cache_tokens"] = self.created_cache_tokens
        return self.counts() | {"prompt_tokens_details": details}


def whole_answer(frame: AnswerFrame, choices: list[tuple[str, str]], usage: Usage) -> dict[str, Any]:
    """`choices` are (text, finish reason)."""
    build = _chat_choice if frame.chat else _completion_choice
    answer = {
        "id": frame.id,
        "object": "chat.completion" if frame.chat else "text_completion",
        "created": frame.created,
        "model": frame.model,
        "choices": [build(index, text, reason) for index, (text, reason) in enumerate(choices)],
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": usage.whole(),
    }
    if frame.chat:
        answer |= {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
    return answer | {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}


def opening_chunk(frame: AnswerFrame, index: int) -> dict[str, Any]:
    """The first chunk of a chat stream: the role, before any text."""
    choice = {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    return _chunk(frame, [choice]) | {"prompt_token_ids": None, "prompt_text": None}


def text_chunk(frame: AnswerFrame, index: int, text: str, finish_reason: str | None) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": index}
    choice |= {"delta": {"content": text}} if frame.chat else {"text": text}
    choice |= {"logprobs": None, "finish_reason": finish_reason}
    if frame.chat:
        choice |= {"token_ids": None} if finish_reason is None else {"stop_reason": None, "token_ids": None}
        return _chunk(frame, [choice])
    return _chunk(frame, [choice | {"stop_reason": None, "prompt_token_ids": None, "token_ids": None}])


def usage_chunk(frame: AnswerFrame, usage: Usage) -> dict[str, Any]:
    return _chunk(frame, []) | {"usage": usage.streamed(), "system_fingerprint": FINGERPRINT}


def models_page(model: str, *, created: int, max_model_len: int) -> dict[str, Any]:
    permission = {
        "id": f"modelperm-{model}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    card = {
        "id": model,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": model,
        "parent": None,
        "max_model_len": max_model_len,
        "permission": [permission],
    }
    return {"object": "list", "data": [card]}


def _chunk(frame: AnswerFrame, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": frame.id,
        "object": "chat.completion.chunk" if frame.chat else "text_completion",
        "created": frame.created,
        "model": frame.model,
        "choices": choices,
    }


def _chat_choice(index: int, text: str, reason: str) -> dict[str, Any]:
    message = {
        "role": "assistant",
        "content": text,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": None,
    }
    return {"index": index, "message": message, **_ending(reason)}


def _completion_choice(index: int, text: str, reason: str) -> dict[str, Any]:
    choice = {"index": index, "text": text, **_ending(reason)}
    return choice | {"prompt_logprobs": None, "prompt_token_ids": None, "routed_experts": None}


def _ending(reason: str) -> dict[str, Any]:
    return {"logprobs": None, "finish_reason": reason, "stop_reason": None, "token_ids": None}
