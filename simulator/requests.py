"""A request's body checked as a vLLM 0.32 worker checks it, with the same statuses and error bodies."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec

from simulator.tokens import ROLE_START, VOCABULARY_SIZE, render_chat, tokenize

SALT_CHARACTERS_MAX = 128
_SALT_FORBIDDEN = re.compile(r"[@/\\\x00]")
COMPLETION_MAX_TOKENS_DEFAULT = 16
CHOICES_MAX = 128
"""Bounds n × prompts of one request."""
UNASKED_OUTPUT_TOKENS = 128
"""Where a request names no `max_tokens`, the simulated model is done after this many (finish_reason `stop`)."""


class RefusedRequest(Exception):
    """An answer in OpenAI's error shape instead of a completion."""

    def __init__(self, status: int, message: str, *, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    chat: bool
    prompts: list[list[int]]
    """Token ids, one list for each prompt; never empty."""
    n: int
    max_tokens: int
    stops: bool
    """True where the model, not `max_tokens`, ends the answer."""
    stream: bool
    include_usage: bool
    continuous_usage: bool
    salt: str | None
    transfer: Mapping[str, Any] | None = None
    """`kv_transfer_params` as they came: for workers that have the connector."""


def parse_generation(body: bytes, *, chat: bool, model: str, max_model_len: int) -> GenerationRequest:
    """Raises RefusedRequest."""
    fields = decode_object(body)
    check_model(fields, model)
    prompts = [_chat_prompt(fields)] if chat else prompts_of(fields, "prompt")
    for prompt in prompts:
        check_length(prompt, max_model_len)
    n = integer(fields, "n", minimum=1) or 1
    if n * len(prompts) > CHOICES_MAX:
        raise RefusedRequest(400, f"n must be at most {CHOICES_MAX // len(prompts)}, got {n}.", param="n")
    asked = integer(fields, "max_completion_tokens", minimum=1) or integer(fields, "max_tokens", minimum=1)
    default = UNASKED_OUTPUT_TOKENS if chat else COMPLETION_MAX_TOKENS_DEFAULT
    options = fields.get("stream_options") or {}
    if not isinstance(options, dict):
        raise invalid("dict_type", "body.stream_options", "Input should be a valid dictionary")
    return GenerationRequest(
        chat=chat,
        prompts=prompts,
        n=n,
        max_tokens=asked or default,
        stops=chat and asked is None,
        stream=bool(fields.get("stream")),
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        salt=salt_of(fields),
        transfer=fields.get("kv_transfer_params"),
    )


def parse_tokenize(body: bytes, *, model: str) -> list[int]:
    """Token ids of `/tokenize`, by `prompt` or by `messages`. Raises RefusedRequest."""
    fields = decode_object(body)
    check_model(fields, model)
    if "messages" in fields:
        return _chat_prompt(fields)
    prompt = fields.get("prompt")
    if not isinstance(prompt, str):
        raise invalid("missing", "body.prompt", "Field required")
    return tokenize(prompt)


def decode_object(body: bytes) -> dict[str, Any]:
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid("json_invalid", "body", f"JSON decode error: {error}") from None
    if not isinstance(fields, dict):
        raise invalid("model_attributes_type", "body", "Input should be a valid dictionary")
    return fields


def check_model(fields: dict[str, Any], model: str) -> None:
    asked = fields.get("model")
    if asked is not None and asked != model:
        message = f"The model `{asked}` does not exist. Valid aliases: {model}."
        raise RefusedRequest(404, message, kind="NotFoundError", param="model")


def _chat_prompt(fields: dict[str, Any]) -> list[int]:
    messages = fields.get("messages")
    if not isinstance(messages, list):
        raise invalid("missing", "body.messages", "Field required")
    if not messages:
        raise RefusedRequest(400, "messages must not be empty. (parameter=messages)", param="messages")
    tools = fields.get("tools")
    text = msgspec.json.encode(tools).decode() if tools else ""
    return render_chat([_message(item) for item in messages], tools=text)


def _message(item: Any) -> tuple[str, str]:
    if not isinstance(item, dict) or item.get("role") not in ROLE_START:
        raise invalid("literal_error", "body.messages.role", f"Input should be one of {sorted(ROLE_START)}")
    return item["role"], text_of(item.get("content"))


def text_of(content: Any) -> str:
    """Content as one string, as vLLM joins text parts for most templates. Any: a text or a list of parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") in TEXT_PARTS for part in content):
        return "\n".join(str(part.get("text", "")) for part in content)
    raise RefusedRequest(400, "This model takes text content only.", param="messages")


TEXT_PARTS = ("text", "input_text", "output_text")


def prompts_of(fields: dict[str, Any], name: str) -> list[list[int]]:
    """Token ids of a text, of a list of texts, or the ids themselves. Raises RefusedRequest."""
    prompt = fields.get(name)
    if not prompt:
        message = "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"
        raise RefusedRequest(400, message, param="prompt")
    if isinstance(prompt, str):
        return [tokenize(prompt)]
    if isinstance(prompt, list) and all(isinstance(item, int) for item in prompt):
        return [_token_ids(prompt)]
    if isinstance(prompt, list):
        return [_one_prompt(item) for item in prompt]
    raise invalid("list_type", "body.prompt", "Input should be a string, a list of strings or token ids")


def _one_prompt(item: Any) -> list[int]:
    if isinstance(item, str) and item:
        return tokenize(item)
    if isinstance(item, list) and item and all(isinstance(token, int) for token in item):
        return _token_ids(item)
    raise invalid("list_type", "body.prompt", "Input should be a string, a list of strings or token ids")


def _token_ids(ids: list[int]) -> list[int]:
    for token in ids:
        if not 0 <= token < VOCABULARY_SIZE:
            raise RefusedRequest(400, f"Token id {token} is out of vocabulary")
    return ids


def check_length(prompt: list[int], max_model_len: int) -> None:
    if len(prompt) < max_model_len:
        return
    message = (
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains {len(prompt)} "
        "input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the "
        f"input prompt. (parameter=input_tokens, value={len(prompt)})"
    )
    raise RefusedRequest(400, message, param="input_tokens")


def integer(fields: dict[str, Any], name: str, *, minimum: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid("int_parsing", f"body.{name}", "Input should be a valid integer")
    if value < minimum:
        message = f"{name} must be at least {minimum}, got {value}. (parameter={name}, value={value})"
        raise RefusedRequest(400, message, param=name)
    return value


def salt_of(fields: dict[str, Any]) -> str | None:
    """`null` = unsalted; the refusals name the rule and never the value."""
    salt = fields.get("cache_salt")
    if salt is None:
        return None
    if not isinstance(salt, str) or not salt:
        message = "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)"
        raise RefusedRequest(400, message, param="cache_salt")
    if len(salt) > SALT_CHARACTERS_MAX or _SALT_FORBIDDEN.search(salt):
        message = (
            "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\\\', or NUL. "
            "(parameter=cache_salt)"
        )
        raise RefusedRequest(400, message, param="cache_salt")
    return salt


def invalid(kind: str, where: str, message: str) -> RefusedRequest:
    text = f"1 validation error:\n  {{'type': '{kind}', 'loc': '{where}', 'msg': '{message}'}}"
    return RefusedRequest(400, text, kind=HTTPStatus.BAD_REQUEST.phrase, param=where)
