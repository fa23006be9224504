"""Mixed requests for two tenants: growing conversations, shared heads, plain texts, streams, more than fits."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.vllm.conftest import WORDS

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
        if thread.body["stream"]:
            thread.body["stream_options"] = {"include_usage": True}
        else:
            thread.body.pop("stream_options", None)
        self.threads.append(thread)
        return thread

    def _begun(self) -> Thread:
        key, head = self.draw.choice(self.keys), self.draw.choice(self._heads)
        settings = {"model": "tiny", "max_tokens": self.draw.randrange(2, 50), "ignore_eos": True, "temperature": 0}
        if self.draw.random() < 0.35:
            return Thread(key, "/v1/completions", settings | {"prompt": f"{head} {self._words(350)}"})
        messages = [{"role": "system", "content": head}, {"role": "user", "content": self._words(250)}]
        tools = {"tools": [TOOL], "tool_choice": "none"} if self.draw.random() < 0.2 else {}
        return Thread(key, "/v1/chat/completions", settings | {"messages": messages} | tools)

    def _longer(self, thread: Thread) -> Thread:
        body, more = dict(thread.body), self._words(80)
        if "prompt" in body:
            body["prompt"] += thread.reply + more
        else:
            reply = {"role": "assistant", "content": thread.reply}
            body["messages"] = [*body["messages"], reply, {"role": "user", "content": more}]
        return Thread(thread.key, thread.path, body)

    def _words(self, tokens: int) -> str:
        count = self.draw.randrange(tokens // 2, tokens + tokens // 2)
        return " ".join(self.draw.choice(WORDS) for _ in range(count))


def ask(client: httpx.Client, thread: Thread) -> Answered:
    """Sends the thread's body and takes its reply in."""
    answer = client.post(thread.path, json=thread.body, headers={"authorization": f"Bearer {thread.key}"})
    assert answer.status_code == 200, answer.text
    parts = _events(answer.text) if thread.body["stream"] else [answer.json()]
    text = "".join(_text(choice) for part in parts for choice in part["choices"])
    usage = next(part["usage"] for part in reversed(parts) if part.get("usage"))
    thread.reply = text
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return Answered(answer.headers["x-request-id"], answer.status_code, usage["prompt_tokens"], cached, text)


def _events(text: str) -> list[dict[str, Any]]:
    lines = (line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: "))
    return [json.loads(line) for line in lines if line != "[DONE]"]


def _text(choice: dict[str, Any]) -> str:
    if "text" in choice:
        return choice["text"] or ""
    return (choice.get("delta") or choice.get("message") or {}).get("content") or ""
