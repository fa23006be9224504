"""The endpoints that run a model: for each its path, its fields, how its prompt is read and how its streams speak.

Every one of them takes `cache_salt` in the body (checked on vLLM 0.32, test `tests/vllm/test_every_endpoint.py`): an
endpoint whose worker ignores it could not be served isolated and does not belong here (S2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from msgspec import Raw
from xxhash import xxh3_64_hexdigest

from router.http.anthropic_conversation import read_anthropic, read_system
from router.http.canonical import HEAD, SETTINGS_BYTES_MIN, chat_tool, setting, stable_json
from router.http.conversation import read_messages, read_prompt
from router.http.errors import BadRequest
from router.http.fields import (
    CHAT_FIELDS,
    EMBEDDINGS_FIELDS,
    INPUTS_MAX,
    MESSAGES_FIELDS,
    RESPONSES_FIELDS,
    TEXT_FIELDS,
    Field,
)
from router.http.responses_conversation import instructions_text, read_input

Values = dict[str, Any]  # Any: checked values of known fields, each of its own type
Raws = dict[str, Raw]


class Prompt(NamedTuple):
    """What the endpoint's reader makes of the conversation."""

    forward: list[tuple[bytes, Raw | bytes]]
    """Fields for the worker besides the known ones: intro and JSON."""
    text: bytes | None
    form: str


@dataclass(frozen=True, slots=True)
class Endpoint:
    name: str
    path: bytes
    fields: dict[str, Field]
    main: frozenset[str]
    """Fields the reader takes; one of them must be there."""
    read: Callable[[Raws, Values, int], Prompt]
    """(raw fields, checked values, bytes of the body) → prompt. Raises BadRequest."""
    speech: Literal["openai", "anthropic", "responses", "none"]
    """How a stream ends and how errors look; `none`: it never streams."""
    stream_usage: bool = False
    """Usage of a stream must be asked for (`stream_options`)."""
    kept_back: frozenset[str] = frozenset()
    """Known fields that are read here and never sent on."""
    fixed: bytes = b""
    """Sent with every request, behind a comma."""
    max_tokens: tuple[str, ...] = ()
    """Fields that bound the answer, the strongest first."""


def _read_chat(raws: Raws, values: Values, body_bytes: int) -> Prompt:
    forward, text, form = read_messages(raws["messages"], body_bytes=body_bytes)
    head = _head(values)
    return Prompt([(b'"messages":', forward)], head + text if text is not None else None, _form(form, head))


def _read_text(raws: Raws, values: Values, body_bytes: int) -> Prompt:
    forward, text, form = read_prompt(raws["prompt"])
    return Prompt([(b'"prompt":', forward)], text, form)


def _read_anthropic(raws: Raws, values: Values, body_bytes: int) -> Prompt:
    if "max_tokens" not in values:
        raise BadRequest("max_tokens is missing.", param="max_tokens")
    forward, text, form = read_anthropic(raws["messages"], body_bytes=body_bytes)
    fields: list[tuple[bytes, Raw | bytes]] = [(b'"messages":', forward)]
    front = b""
    if "system" in raws:
        system, front = read_system(raws["system"])
        fields.append((b'"system":', system))
    assert text is not None
    head = _head(values)
    return Prompt(fields, head + front + text, _form(form, head))


_CLIENT_TOOLS: Final = frozenset(("function", "custom", "namespace"))
"""Tools that the client runs. The others would have the worker call out on a tenant's behalf."""


def _read_responses(raws: Raws, values: Values, body_bytes: int) -> Prompt:
    for name in ("prompt", "conversation", "background"):
        if values.get(name):
            raise BadRequest(f"{name} is not offered here: nothing is stored between requests.", param=name)
    if "previous_response_id" in raws and bytes(raws["previous_response_id"]) != b"null":
        raise BadRequest("Responses are not stored here: send the conversation itself.", param="previous_response_id")
    for tool in values.get("tools") or ():
        if tool.get("type") not in _CLIENT_TOOLS:
            raise BadRequest("Only tools that the client runs are offered: function, custom, namespace.", param="tools")
    forward, text, form = read_input(raws["input"])
    head = _head(values)
    front = head + instructions_text(values.get("instructions") or "")
    assert text is not None
    return Prompt([(b'"input":', forward)], front + text, _form(form, head))


def _read_embeddings(raws: Raws, values: Values, body_bytes: int) -> Prompt:
    if "messages" in raws:
        if "input" in raws:
            raise BadRequest("Give either input or messages.", param="input")
        forward, text, form = read_messages(raws["messages"], body_bytes=body_bytes)
        head = _head(values)
        return Prompt([(b'"messages":', forward)], head + text if text is not None else None, _form(form, head))
    forward, text, form = read_prompt(raws["input"], param="input", prompts_max=INPUTS_MAX)
    return Prompt([(b'"input":', forward)], text, form)


def _form(form: str, head: bytes) -> str:
    """Prompts behind different heads are of different forms: a template may leave the head out, as many do with tools,
    and then equal tokens come with different text."""
    return f"{form}+{xxh3_64_hexdigest(head)}" if head else form


def _head(values: Values) -> bytes:
    """What a template puts in front of the messages, in one order whatever the client's."""
    if values.keys().isdisjoint(_FRONT):
        return b""
    out = [setting(name, values[name]) for name in ("chat_template", "documents") if values.get(name)]
    if values.get("tools"):
        out.append(setting("tools", [chat_tool(tool) for tool in values["tools"]]))
    if values.get("previous_input_messages"):
        out.append(setting("previous", values["previous_input_messages"]))
    settings = stable_json(values.get("chat_template_kwargs") or {})
    if len(settings) >= SETTINGS_BYTES_MIN:
        out += (HEAD, settings)
    return b"".join(out)


_FRONT: Final = frozenset(("chat_template", "documents", "tools", "previous_input_messages", "chat_template_kwargs"))

CHAT: Final = Endpoint(
    "chat", b"/v1/chat/completions", CHAT_FIELDS, frozenset(("messages",)), _read_chat, "openai",
    stream_usage=True, kept_back=frozenset(("stream_options",)), max_tokens=("max_completion_tokens", "max_tokens"),
)  # fmt: skip
TEXT: Final = Endpoint(
    "text", b"/v1/completions", TEXT_FIELDS, frozenset(("prompt",)), _read_text, "openai",
    stream_usage=True, kept_back=frozenset(("stream_options",)), max_tokens=("max_tokens",),
)  # fmt: skip
MESSAGES: Final = Endpoint(
    "messages", b"/v1/messages", MESSAGES_FIELDS, frozenset(("messages",)), _read_anthropic, "anthropic",
    max_tokens=("max_tokens",),
)  # fmt: skip
RESPONSES: Final = Endpoint(
    "responses", b"/v1/responses", RESPONSES_FIELDS, frozenset(("input",)), _read_responses, "responses",
    kept_back=frozenset(("store", "background", "conversation", "prompt", "stream_options")), fixed=b'"store":false',
    max_tokens=("max_output_tokens",),
)  # fmt: skip
EMBEDDINGS: Final = Endpoint(
    "embeddings", b"/v1/embeddings", EMBEDDINGS_FIELDS, frozenset(("input", "messages")), _read_embeddings, "none",
)  # fmt: skip

ENDPOINTS: dict[bytes, Endpoint] = {each.path: each for each in (CHAT, TEXT, MESSAGES, RESPONSES, EMBEDDINGS)}
