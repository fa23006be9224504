"""The fields that decide a request's prompt, whatever endpoint it came to: chats and texts as they are, `/v1/messages`
and `/v1/responses` as the chat that a worker makes of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from router.adapters.chat_messages import Unrenderable
from router.adapters.chat_template import ChatTemplate
from router.adapters.exact_messages import MESSAGES_FIELDS, chat_of_messages
from router.adapters.exact_responses import RESPONSES_FIELDS, chat_of_responses
from router.adapters.tokenizer import decode_fields

EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
"""Efforts of vLLM 0.32's `AnthropicEffort`."""
_FIELDS: Final = {"messages": MESSAGES_FIELDS, "responses": RESPONSES_FIELDS}

_Json = dict[str, Any]  # Any: decoded JSON of the client


class Dialects:
    """Of one model. Both properties follow vLLM 0.32, which probes the chat template (`entrypoints/anthropic`)."""

    def __init__(self, template: ChatTemplate | None) -> None:
        self._template = template

    def decode(self, raws: Mapping[str, Any], kind: str) -> tuple[_Json, bool]:
        """(decoded fields, whether they are a chat's) of an endpoint named `kind`: `chat`, `text`, `messages` or
        `responses`. Raises Unrenderable. Any: `msgspec.Raw` or bytes, JSON that has been checked.
        """
        if kind not in _FIELDS:
            return decode_fields(raws, chat=kind == "chat"), kind == "chat"
        fields = {name: json.loads(bytes(raws[name])) for name in _FIELDS[kind] if name in raws}
        try:
            if kind == "responses":
                return chat_of_responses(fields), True
            return self._of_messages(fields), True
        except (AttributeError, KeyError, TypeError):
            # The worker's own types refuse such a request.
            raise Unrenderable("a value is of another type than the API's") from None

    def _of_messages(self, fields: _Json) -> _Json:
        merges, effort = self.merges_system, self.disabled_effort
        return chat_of_messages(fields, merges_system=merges, disabled_effort=effort)

    @cached_property
    def merges_system(self) -> bool:
        """Whether a template refuses system messages amid others, so that they join the first one."""
        sources = self._template.sources if self._template is not None else ()
        return any(_refuses_system_amid(source) for source in sources)

    @cached_property
    def disabled_effort(self) -> str:
        """What thinking `disabled` is rendered as: `low` where the template does not tell `none` from an effort."""
        without = self._probe("none")
        return "low" if without is None or without in map(self._probe, EFFORTS) else "none"

    def _probe(self, effort: str) -> str | None:
        fields = {"messages": [{"role": "user", "content": "Hi"}], "reasoning_effort": effort}
        try:
            return None if self._template is None else self._template.render(fields)
        except Unrenderable:
            return None


def _refuses_system_amid(source: str) -> bool:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    turns = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]
    try:
        environment.from_string(source).render(messages=turns, add_generation_prompt=False)
    except Exception:
        # A template runs arbitrary expressions: whatever it raises, it does not take such a conversation.
        return True
    return False
