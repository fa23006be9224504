"""Proof that prompts tokenise here as on a worker: the same probes through its `/tokenize`.

Run it when a worker joins and when its version or the model's files change. `different` means that the pool must stay
approximate; `unknown` that the worker gave no usable answer, so that nothing is proven either way. A report names the
probe and the place of the first difference, never a text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
import msgspec

from router.adapters.chat_messages import Unrenderable
from router.adapters.served_models import ServedModels, served_models
from router.adapters.tokenizer import ExactTokenizer

TIMEOUT_S = 10.0
"""For each probe; a loaded worker answers in well below a second."""
ANSWER_BYTES_MAX = 1024 * 1024
TOKENS_PROBED_MAX = 16
"""Added tokens whose literal text is probed."""

NO_HEADERS: Mapping[str, str] = {}

Verdict = Literal["equal", "different", "unknown"]
_Json = dict[str, Any]  # Any: JSON for the worker


@dataclass(frozen=True, slots=True)
class Probe:
    name: str
    chat: bool
    fields: _Json


@dataclass(frozen=True, slots=True)
class ParityReport:
    verdict: Verdict
    version: str
    """Of the model's files here."""
    equal: int
    """Probes that gave equal ids."""
    skipped: int
    """Probes that the template here or the worker refuses: nothing is predicted for such requests."""
    probe: str = ""
    """Name of the probe that decided a verdict other than `equal`."""
    position: int | None = None
    """First token that differs."""
    reason: str = ""
    models: ServedModels = field(default_factory=dict)
    """What the worker serves, where the verdict is `equal`."""


class _Answer(msgspec.Struct):
    tokens: list[int]


async def check_parity(
    client: httpx.AsyncClient,
    worker_url: str,
    exact: ExactTokenizer,
    *,
    model: str,
    headers: Mapping[str, str] = NO_HEADERS,
) -> ParityReport:
    """Compares every probe with the worker's answer, one after another; never raises for what the worker does."""
    equal = skipped = 0
    kinds_equal = set()
    for probe in probes(exact):
        ours = _ours(exact, probe)
        theirs = await _theirs(client, worker_url, probe, model=model, headers=headers)
        if isinstance(theirs, str):
            return ParityReport("unknown", exact.version, equal, skipped, probe.name, reason=theirs)
        if ours is None or theirs is None:
            skipped += 1
            continue
        place = first_difference(ours, theirs)
        if place is not None:
            return ParityReport("different", exact.version, equal, skipped, probe.name, place, "token ids differ")
        equal += 1
        kinds_equal.add(probe.chat)
    if False not in kinds_equal or (exact.has_template and True not in kinds_equal):
        return ParityReport("unknown", exact.version, equal, skipped, reason="no probe of one kind was answered")
    models = await served_models(client, worker_url, headers=headers)
    if isinstance(models, str):
        return ParityReport("unknown", exact.version, equal, skipped, reason=models)
    return ParityReport("equal", exact.version, equal, skipped, models=models)


def first_difference(ours: list[int], theirs: list[int]) -> int | None:
    if ours == theirs:
        return None
    pairs = zip(ours, theirs, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))


def probes(exact: ExactTokenizer) -> Iterator[Probe]:
    texts = _texts(exact)
    for name, text in texts.items():
        yield Probe(f"prompt {name}", False, {"prompt": text})
        yield Probe(f"prompt {name} without special tokens", False, {"prompt": text, "add_special_tokens": False})
    if exact.has_template:
        for name, text in texts.items():
            yield Probe(f"chat {name}", True, {"messages": [_user(text)]})
        yield from _conversations(texts)


def _texts(exact: ExactTokenizer) -> dict[str, str]:
    tokens = exact.added_tokens()[:TOKENS_PROBED_MAX]
    return {
        "words": "The quick brown fox doesn't jump over 12345.67 lazy dogs; it's _fine_ (really).",
        "unicode": "naïve Ünïcödé 中文字符 עברית 😀👩‍👩‍👧 e\u0301 \u200b\u00a0\u2028 Ⅷ ﬁ",
        "whitespace": "  two  spaces\t\ttabs\r\n\n\n   lines \n end  ",
        "code": "def f(x):\n    return {'a': [1, 2.5e-3]}  # ok\n\n\tif (a&&b) { c->d(); }</s><s>[INST]",
        "added tokens": "".join(f" {token}x{token} \n" for token in tokens) + "".join(tokens),
    }


def _conversations(texts: dict[str, str]) -> Iterator[Probe]:
    words, unicode_text, spaces = texts["words"], texts["unicode"], texts["whitespace"]
    turns = [_user(words), {"role": "assistant", "content": spaces}, _user(unicode_text)]
    parts = [{"type": "text", "text": words}, {"type": "text", "text": ""}, {"type": "text", "text": spaces}]
    call = {"id": "call00001", "type": "function", "function": {"name": "look_up", "arguments": '{"b": "é", "a": [1]}'}}
    asked = [_user(words), {"role": "assistant", "content": None, "tool_calls": [call]}]
    answered = [*asked, {"role": "tool", "tool_call_id": "call00001", "content": unicode_text}]
    schema = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"enum": [1, 2.5, None]}}}
    tool = {"type": "function", "function": {"name": "look_up", "description": "<&'é", "parameters": schema}}
    yield Probe("chat turns", True, {"messages": turns})
    yield Probe("chat with a system message", True, {"messages": [{"role": "system", "content": words}, *turns]})
    yield Probe("chat with parts", True, {"messages": [{"role": "user", "content": parts}]})
    yield Probe("chat without generation prompt", True, {"messages": turns, "add_generation_prompt": False})
    yield Probe("chat with tools", True, {"messages": turns, "tools": [tool]})
    yield Probe("chat with a tool call", True, {"messages": answered, "tools": [tool]})


def _user(text: str) -> _Json:
    return {"role": "user", "content": text}


def _ours(exact: ExactTokenizer, probe: Probe) -> list[int] | None:
    try:
        return exact.token_ids(probe.fields, chat=probe.chat)
    except Unrenderable:
        return None


async def _theirs(
    client: httpx.AsyncClient, worker_url: str, probe: Probe, *, model: str, headers: Mapping[str, str]
) -> list[int] | str | None:
    """The worker's ids, None where it refuses the probe, or a reason why there is no answer."""
    url = worker_url.rstrip("/") + "/tokenize"
    try:
        async with client.stream(
            "POST", url, json={"model": model, **probe.fields}, headers=headers, timeout=TIMEOUT_S
        ) as answer:
            if answer.status_code in (400, 422):
                return None
            if answer.status_code != 200:
                return f"the worker answers /tokenize with status {answer.status_code}"
            body = b""
            async for chunk in answer.aiter_bytes():
                body += chunk
                if len(body) > ANSWER_BYTES_MAX:
                    return "the worker's answer is too long"
        return msgspec.json.decode(body, type=_Answer).tokens
    except httpx.HTTPError as error:
        return f"the worker does not answer: {type(error).__name__}"
    except msgspec.DecodeError:
        return "the worker's answer is not understood"
