"""Sends one chat request as an application does: streamed, timed at the first body chunk, retried where it helps."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass

import httpx
import msgspec

from simulator.clients import Client
from simulator.replay import ChatTurn
from simulator.report import TrafficReport

ATTEMPTS_MAX = 5
"""Of one request that is refused with 429 or 503, the first included."""
CONNECT_WAIT_S_MAX = 2.0
"""Between attempts to reach a router that does not listen; it is tried for ever, as it may be restarting."""
BACKOFF_S_DEFAULT, BACKOFF_S_MAX = 1.0, 30.0
"""Without and above a usable Retry-After."""
ANSWER_S_MAX = 120.0
"""Silence after which an answer counts as lost."""
TAIL_BYTES = 4_096
"""Kept of the end of a stream: the usage chunk and [DONE] are under 1 KB."""

_encode = msgspec.json.Encoder().encode
_END = b"data: [DONE]"


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Details | None = None


class _UsageChunk(msgspec.Struct):
    usage: _Usage | None = None


_decode_chunk = msgspec.json.Decoder(_UsageChunk).decode


@dataclass(frozen=True, slots=True)
class Answer:
    usage: _Usage | None
    ttft_ms: float
    duration_ms: float

    @property
    def cached_tokens(self) -> int | None:
        details = self.usage.prompt_tokens_details if self.usage else None
        return details.cached_tokens if details else None


class Refused(Exception):
    """429 or 503: come again after `wait_s`."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(wait_s)
        self.wait_s = wait_s


class Failed(Exception):
    """Not worth repeating: any other status, or an answer that broke off."""


class Sender:
    def __init__(self, http: httpx.AsyncClient, report: TrafficReport, *, seed: int) -> None:
        self._http = http
        self._report = report
        self._dice = random.Random(seed)  # noqa: S311  jitter, no secret

    async def send(self, client: Client, turn: ChatTurn) -> Answer | None:
        """The answer, counted in the report; None when it failed for good, counted too."""
        body = _encode(
            {
                "model": client.model,
                "messages": turn.messages,
                "max_tokens": turn.max_tokens,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        headers = _headers(client, turn)
        for _attempt in range(ATTEMPTS_MAX):
            try:
                answer = await self._until_connected(headers, body)
            except Refused as refused:
                self._report.backoffs += 1
                await asyncio.sleep(refused.wait_s * self._dice.uniform(1.0, 1.25))
            except Failed:
                break
            else:
                self._count(client, answer)
                return answer
        self._report.failed += 1
        return None

    async def _until_connected(self, headers: dict[str, str], body: bytes) -> Answer:
        wait_s = 0.1
        while True:
            try:
                return await self._stream(headers, body)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                self._report.connect_retries += 1
                await asyncio.sleep(wait_s)
                wait_s = min(CONNECT_WAIT_S_MAX, wait_s * 2)

    async def _stream(self, headers: dict[str, str], body: bytes) -> Answer:
        started = time.perf_counter()
        try:
            async with self._http.stream("POST", "/v1/chat/completions", content=body, headers=headers) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise self._refusal(response)
                first_at, tail = await _read_to_end(response)
        except asyncio.CancelledError:
            self._report.cut_off += 1
            raise
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise
        except httpx.TimeoutException:
            self._report.count_error("timeout")
            raise Failed from None
        except httpx.TransportError:
            self._report.count_error("broken")
            raise Failed from None
        if first_at is None or _END not in tail:
            self._report.count_error("broken")
            raise Failed
        ended = time.perf_counter()
        return Answer(_usage_in(tail), ttft_ms=(first_at - started) * 1_000, duration_ms=(ended - started) * 1_000)

    def _refusal(self, response: httpx.Response) -> Exception:
        self._report.count_error(str(response.status_code))
        if response.status_code in (429, 503):
            return Refused(_retry_after_s(response))
        return Failed()

    def _count(self, client: Client, answer: Answer) -> None:
        usage = answer.usage
        self._report.count_answer(
            client.namespace,
            prompt_tokens=usage.prompt_tokens if usage else None,
            cached_tokens=answer.cached_tokens,
            output_tokens=usage.completion_tokens if usage else None,
            ttft_ms=answer.ttft_ms,
            duration_ms=answer.duration_ms,
        )


def _headers(client: Client, turn: ChatTurn) -> dict[str, str]:
    headers = {"authorization": f"Bearer {client.key}", "content-type": "application/json"}
    if client.session_header and turn.session:
        headers["x-session-id"] = turn.session
    if client.template:
        headers["x-tidemark-template"] = client.template
    return headers


async def _read_to_end(response: httpx.Response) -> tuple[float | None, bytes]:
    """When the first body bytes came, and the stream's last bytes."""
    first_at: float | None = None
    tail = b""
    async for chunk in response.aiter_bytes():
        if first_at is None:
            first_at = time.perf_counter()
        tail = (tail + chunk)[-TAIL_BYTES:]
    return first_at, tail


def _usage_in(tail: bytes) -> _Usage | None:
    for line in reversed(tail.split(b"\n")):
        if line.startswith(b"data: {") and b'"usage"' in line:
            try:
                return _decode_chunk(line[6:]).usage
            except msgspec.DecodeError:
                return None
    return None


def _retry_after_s(response: httpx.Response) -> float:
    try:
        asked = float(response.headers.get("retry-after", ""))
    except ValueError:
        return BACKOFF_S_DEFAULT
    return min(max(asked, 0.0), BACKOFF_S_MAX) if asked == asked else BACKOFF_S_DEFAULT
