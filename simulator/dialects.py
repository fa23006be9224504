"""Bodies of `/v1/messages`, `/v1/responses` and `/v1/embeddings`, checked and turned into what the engine runs."""

from __future__ import annotations

from typing import Any

from simulator.requests import UNASKED_OUTPUT_TOKENS as UNASKED
from simulator.requests import (
    GenerationRequest,
    RefusedRequest,
    check_length,
    check_model,
    decode_object,
    integer,
    invalid,
    prompts_of,
    salt_of,
    text_of,
)
from simulator.tokens import render_chat

Fields = dict[str, Any]
"""A decoded body."""


def parse_messages(body: bytes, *, model: str, max_model_len: int) -> GenerationRequest:
    """Raises RefusedRequest."""
    fields = decode_object(body)
    check_model(fields, model)
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise invalid("missing", "body.messages", "Field required")
    system = fields.get("system")
    turns = [("system", text_of(system))] if system else []
    turns += [(str(item.get("role")), text_of(item.get("content"))) for item in messages]
    asked = integer(fields, "max_tokens", minimum=1)
    if asked is None:
        raise invalid("missing", "body.max_tokens", "Field required")
    return _request(fields, turns, asked, max_model_len)


def parse_responses(body: bytes, *, model: str, max_model_len: int) -> GenerationRequest:
    """Raises RefusedRequest."""
    fields = decode_object(body)
    check_model(fields, model)
    given = fields.get("input")
    if isinstance(given, str):
        turns = [("user", given)]
    elif isinstance(given, list) and given:
        turns = [(str(item.get("role", "user")), text_of(item.get("content"))) for item in given]
    else:
        raise invalid("string_type", "body.input", "Input should be a valid string")
    if fields.get("previous_response_id"):
        message = f"Response with id '{fields['previous_response_id']}' not found."
        raise RefusedRequest(404, message, kind="invalid_request_error", param="response_id")
    if fields.get("instructions"):
        turns.insert(0, ("system", str(fields["instructions"])))
    asked = integer(fields, "max_output_tokens", minimum=1)
    return _request(fields, turns, asked, max_model_len)


def parse_embeddings(body: bytes, *, model: str, max_model_len: int) -> GenerationRequest:
    """One prompt for each input; the one token that each generates is not shown. Raises RefusedRequest."""
    fields = decode_object(body)
    check_model(fields, model)
    prompts = prompts_of(fields, "input")
    for prompt in prompts:
        check_length(prompt, max_model_len)
    return GenerationRequest(
        chat=False, prompts=prompts, n=1, max_tokens=1, stops=False, stream=False, include_usage=False,
        continuous_usage=False, salt=salt_of(fields),
    )  # fmt: skip


def _request(fields: Fields, turns: list[tuple[str, str]], asked: int | None, max_model_len: int) -> GenerationRequest:
    try:
        prompt = render_chat(turns)
    except KeyError as error:
        raise invalid("literal_error", "body.messages.0.role", f"Input is no role: {error}") from None
    check_length(prompt, max_model_len)
    return GenerationRequest(
        chat=True, prompts=[prompt], n=1, max_tokens=asked or UNASKED, stops=asked is None,
        stream=bool(fields.get("stream")), include_usage=True, continuous_usage=False, salt=salt_of(fields),
    )  # fmt: skip
