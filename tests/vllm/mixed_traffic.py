"""Mixed requests for two tenants: growing conversations in three APIs, shared heads, plain texts, streams, more than
fits."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.vllm.conftest import WORDS

CHAT, TEXT = OPENAI = ("/v1/chat/completions", "/v1/completions")
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
SHARES = {CHAT: 0.35, TEXT: 0.25, MESSAGES: 0.2, RESPONSES: 0.2}
"""Of the threads that are begun."""
GOES_ON = 0.55
"""Share of requests that continue a conversation or text."""
REPEATS = 0.05
RECENT = 12
"""Conversations that may go on: older ones are partly evicted by then."""
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "lines": {"enum": [1, 2.5, None]}}}
TOOL = {"type": "function", "function": {"name": "read", "description": "Read a file", "parameters": SCHEMA}}


@dataclass
class Thread:
    """One conversation or growing text. `body` is what was sent last, `reply` what came back."""

    key: str
    path: str
    body: dict[str, Any]
    reply: str = ""


@dataclass(frozen=True)
class Answered:
    request_id: str
    status: int
    prompt_tokens: int
    cached_tokens: int
    text: str


@dataclass
class MixedTraffic:
    keys: list[str]
    draw: random.Random
    threads: list[Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._heads = [self._words(tokens) for tokens in (300, 700, 1200)]
        """Shared by both tenants, whose salts keep them apart."""

    def next(self) -> Thread:
        recent = self.threads[-RECENT:]
        if recent and self.draw.random() < REPEATS:
            return self.draw.choice(recent)
        goes_on = recent and self.draw.random() < GOES_ON
        thread = self._longer(self.draw.choice(recent)) if goes_on else self._begun()
        thread.body["stream"] = self.draw.random() < 0.5
        thread.body.pop("stream_options", None)
        if thread.body["stream"] and thread.path in OPENAI:
            thread.body["stream_options"] = {"include_usage": True}
        self.threads.append(thread)
        return thread

    def _begun(self) -> Thread:
        key, head = self.draw.choice(self.keys), self.draw.choice(self._heads)
        path = self.draw.choices(list(SHARES), list(SHARES.values()))[0]
        tokens, settings = self.draw.randrange(2, 50), {"model": "tiny", "temperature": 0}
        question = {"role": "user", "content": self._words(250)}
        if path == RESPONSES:
            return Thread(
                key, path, settings | {"max_output_tokens": tokens, "instructions": head, "input": [question]}
            )
        settings["max_tokens"] = tokens
        if path == MESSAGES:
            return Thread(key, path, settings | {"system": head, "messages": [question]})
        settings["ignore_eos"] = True
        if path == TEXT:
            return Thread(key, path, settings | {"prompt": f"{head} {self._words(350)}"})
        tools = {"tools": [TOOL], "tool_choice": "none"} if self.draw.random() < 0.2 else {}
        return Thread(key, path, settings | {"messages": [{"role": "system", "content": head}, question]} | tools)

    def _longer(self, thread: Thread) -> Thread:
        body, more = dict(thread.body), self._words(80)
        if "prompt" in body:
            body["prompt"] += thread.reply + more
        else:
            turns = "input" if thread.path == RESPONSES else "messages"
            # An answer may be empty, and Anthropic's API takes no empty turn.
            reply = {"role": "assistant", "content": thread.reply or "."}
            body[turns] = [*body[turns], reply, {"role": "user", "content": more}]
        return Thread(thread.key, thread.path, body)

    def _words(self, tokens: int) -> str:
        count = self.draw.randrange(tokens // 2, tokens + tokens // 2)
        return " ".join(self.draw.choice(WORDS) for _ in range(count))


def ask(client: httpx.Client, thread: Thread) -> Answered:
    """Sends the thread's body and takes its reply in."""
    answer = client.post(thread.path, json=thread.body, headers={"authorization": f"Bearer {thread.key}"})
    assert answer.status_code == 200, answer.text
    parts = _events(answer.text) if thread.body["stream"] else [answer.json()]
    thread.reply = text = "".join(_TEXTS[thread.path](part) for part in parts)
    prompt_tokens, cached = _tokens(next(usage for part in reversed(parts) if (usage := _usage(part))))
    return Answered(answer.headers["x-request-id"], answer.status_code, prompt_tokens, cached, text)


def _events(text: str) -> list[dict[str, Any]]:
    lines = (line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: "))
    return [json.loads(line) for line in lines if line != "[DONE]"]


def _usage(part: dict[str, Any]) -> dict[str, Any]:
    return part.get("usage") or (part.get("response") or {}).get("usage") or {}


def _tokens(usage: dict[str, Any]) -> tuple[int, int]:
    """(prompt tokens, cached tokens) in the words of any of the APIs."""
    if "prompt_tokens" in usage:
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
    if "input_tokens_details" in usage:
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]
    cached = usage["cache_read_input_tokens"]
    return usage["input_tokens"] + cached + (usage.get("cache_creation_input_tokens") or 0), cached


def _openai_text(part: dict[str, Any]) -> str:
    return "".join(_choice_text(choice) for choice in part["choices"])


def _choice_text(choice: dict[str, Any]) -> str:
    if "text" in choice:
        return choice["text"] or ""
    return (choice.get("delta") or choice.get("message") or {}).get("content") or ""


def _messages_text(part: dict[str, Any]) -> str:
    if part.get("type") == "content_block_delta":
        return part["delta"].get("text") or ""
    return "".join(block.get("text") or "" for block in part.get("content") or ())


def _responses_text(part: dict[str, Any]) -> str:
    if part.get("type") == "response.output_text.delta":
        return part["delta"]
    items = (item for item in part.get("output") or () if item["type"] == "message")
    return "".join(content["text"] for item in items for content in item["content"])


_TEXTS = {CHAT: _openai_text, TEXT: _openai_text, MESSAGES: _messages_text, RESPONSES: _responses_text}
