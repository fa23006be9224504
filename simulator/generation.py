"""Answers the endpoints that run the model: admit, stream or collect, account for usage."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simulator.answers import AnswerFrame, Usage, opening_chunk, text_chunk, usage_chunk, whole_answer
from simulator.asgi import Exchange, cancelled_on_disconnect
from simulator.dialects import parse_embeddings, parse_messages, parse_responses
from simulator.engine import Engine, Sequence
from simulator.faults import Faults
from simulator.metrics import WorkerMetrics
from simulator.nixl import Handover, Params, TransferFailed, load_failed, params_of
from simulator.requests import GenerationRequest, RefusedRequest, parse_generation
from simulator.runner import EngineRunner, TokenStream
from simulator.tokens import spoken_text
from simulator.voices import MessagesVoice, ResponsesVoice, Voice, embeddings_answer

ID_PREFIXES = {
    "chat": "chatcmpl-",
    "text": "cmpl-",
    "messages": "chatcmpl-",
    "responses": "resp_",
    "embeddings": "embd-",
}
_PARSERS = {"messages": parse_messages, "responses": parse_responses, "embeddings": parse_embeddings}
_VOICES: dict[str, Callable[[AnswerFrame], Voice]] = {"messages": MessagesVoice, "responses": ResponsesVoice}


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    model: str
    prompt_tokens_details: bool
    stream_interval_tokens: int
    """Tokens in one stream chunk, the first token excepted; vLLM's `--stream-interval`."""
    max_num_queued_reqs: int


class Generation:
    def __init__(
        self,
        settings: GenerationSettings,
        engine: Engine,
        runner: EngineRunner,
        metrics: WorkerMetrics,
        dice: random.Random,
        handover: Handover | None = None,
    ) -> None:
        """`handover` None: the worker has no connector, and reads no `kv_transfer_params`."""
        self._settings = settings
        self._engine = engine
        self._runner = runner
        self._metrics = metrics
        self._dice = dice
        self._handover = handover
        self._numbers = itertools.count()
        self.inflight = 0

    async def answer(self, exchange: Exchange, faults: Faults, *, endpoint: str) -> None:
        """`endpoint` is one of ID_PREFIXES. Raises RefusedRequest before anything was sent."""
        body = await exchange.body()
        _check_media_type(exchange)
        self._fail_on_command(faults)
        request = self._parse(body, endpoint)
        self._check_queue()
        transfer = self._transfer(request)
        frame = self._frame(exchange, endpoint)
        self.inflight += 1
        streams: list[TokenStream] = []
        try:
            async with cancelled_on_disconnect(exchange):
                if not await self._pulled(exchange, request, transfer):
                    return
                self._submit(streams, request, faults, transfer)
                dies = self._dice.random() < faults.die_mid_stream
                if endpoint in _VOICES:
                    voice = _VOICES[endpoint](frame)
                    await self._speak(exchange, voice, request, streams, faults.lie_hits, dies)
                elif endpoint == "embeddings":
                    await self._embed(exchange, frame, request, streams)
                else:
                    send = self._stream if request.stream else self._collect
                    await send(exchange, frame, request, streams, faults.lie_hits, dies, transfer)
        finally:
            self.inflight -= 1
            for stream in streams:
                self._runner.leave(stream)

    def _transfer(self, request: GenerationRequest) -> Params | None:
        if self._handover is None or request.transfer is None or len(request.prompts) * request.n > 1:
            return None
        return params_of(request.transfer)

    async def _pulled(self, exchange: Exchange, request: GenerationRequest, transfer: Params | None) -> bool:
        """Whether the answer goes on; a stream whose KV did not come is over. Raises RefusedRequest."""
        if self._handover is None or transfer is None or not transfer.do_remote_prefill:
            return True
        try:
            await self._handover.pull(transfer, len(request.prompts[0]))
            return True
        except TransferFailed:
            failure = load_failed()
        if not request.stream:
            raise failure
        await exchange.start(200, "text/event-stream; charset=utf-8")
        await exchange.write_event(failure.body)
        await exchange.write(b"data: [DONE]\n\n", more=False)
        return False

    def _fail_on_command(self, faults: Faults) -> None:
        if faults.status == 429:
            raise RefusedRequest(429, "Too many requests.", kind="RateLimitError")
        if faults.status == 500 or self._dice.random() < faults.error_rate:
            raise RefusedRequest(500, "Internal server error.", kind="InternalServerError")

    def _check_queue(self) -> None:
        if len(self._engine.waiting) >= self._settings.max_num_queued_reqs:
            self._metrics.observe_rejection()
            message = f"The queue holds {self._settings.max_num_queued_reqs} requests already. Try again later."
            raise RefusedRequest(503, message, kind="ServiceUnavailableError")

    def _parse(self, body: bytes, endpoint: str) -> GenerationRequest:
        model, max_model_len = self._settings.model, self._engine.limits.max_model_len
        if endpoint in _PARSERS:
            return _PARSERS[endpoint](body, model=model, max_model_len=max_model_len)
        return parse_generation(body, chat=endpoint == "chat", model=model, max_model_len=max_model_len)

    def _frame(self, exchange: Exchange, endpoint: str) -> AnswerFrame:
        name = f"{ID_PREFIXES[endpoint]}{exchange.request_id}"
        return AnswerFrame(name, int(time.time()), self._settings.model, endpoint == "chat")

    def _submit(
        self, streams: list[TokenStream], request: GenerationRequest, faults: Faults, transfer: Params | None
    ) -> None:
        ready = asyncio.Event()
        now = time.monotonic()
        for prompt in request.prompts:
            for _ in range(request.n):
                sequence = Sequence(
                    id=str(next(self._numbers)),
                    tokens=list(prompt),
                    prompt_tokens=len(prompt),
                    max_tokens=request.max_tokens,
                    salt=None if faults.ignore_salt else request.salt,
                    arrived_at=now,
                    stops=request.stops,
                    keeps=transfer is not None and transfer.do_remote_decode,
                    pulled=transfer is not None and transfer.do_remote_prefill,
                )
                streams.append(self._accepted(sequence, ready))

    def _accepted(self, sequence: Sequence, ready: asyncio.Event) -> TokenStream:
        try:
            return self._runner.submit(sequence, ready)
        except ValueError as error:
            raise RefusedRequest(400, str(error), param="input_tokens") from None

    async def _collect(
        self,
        exchange: Exchange,
        frame: AnswerFrame,
        request: GenerationRequest,
        streams: list[TokenStream],
        lie_hits: int,
        dies: bool,
        transfer: Params | None,
    ) -> None:
        while not all(stream.finish_reason for stream in streams):
            await _tokens_arrive(streams)
            if dies:
                await exchange.start(200, "application/json", 1_000)
                return  # an answer shorter than announced: the server closes the connection
        choices = [(spoken_text(stream.take()), stream.finish_reason or "") for stream in streams]
        answer = whole_answer(frame, choices, self._usage(request, streams, lie_hits, transfer))
        if self._handover is not None and transfer is not None and transfer.do_remote_decode:
            answer["kv_transfer_params"] = self._handover.offer(exchange.request_id, streams[0].sequence)
        await exchange.answer_json(200, answer)

    async def _stream(
        self,
        exchange: Exchange,
        frame: AnswerFrame,
        request: GenerationRequest,
        streams: list[TokenStream],
        lie_hits: int,
        dies: bool,
        transfer: Params | None,
    ) -> None:
        await exchange.start(200, "text/event-stream; charset=utf-8")
        opened = False
        while not all(stream.finish_reason and not stream.tokens for stream in streams):
            await _tokens_arrive(streams)
            if frame.chat and not opened:
                opened = True
                for index in range(len(streams)):
                    await exchange.write_event(opening_chunk(frame, index))
            for index, stream in enumerate(streams):
                if stream.due(self._settings.stream_interval_tokens):
                    await self._write_tokens(exchange, frame, request, index, stream)
            if dies:
                return  # a stream without its end: the server closes the connection
        if request.include_usage:
            await exchange.write_event(usage_chunk(frame, self._usage(request, streams, lie_hits, transfer)))
        await exchange.write(b"data: [DONE]\n\n", more=False)

    async def _speak(
        self,
        exchange: Exchange,
        voice: Voice,
        request: GenerationRequest,
        streams: list[TokenStream],
        lie_hits: int,
        dies: bool,
    ) -> None:
        """A whole answer or a stream of named events."""
        stream = streams[0]
        if not request.stream:
            while not stream.finish_reason:
                await _tokens_arrive(streams)
            if dies:
                await exchange.start(200, "application/json", 1_000)
                return
            usage = self._usage(request, streams, lie_hits)
            await exchange.answer_json(200, voice.whole(spoken_text(stream.take()), usage, stream.finish_reason))
            return
        await exchange.start(200, "text/event-stream; charset=utf-8")
        opened = voice.early
        if opened:
            await _write_named(exchange, voice.opening(stream.sequence.prompt_tokens))
        while not (stream.finish_reason and not stream.tokens):
            await _tokens_arrive(streams)
            if not opened:
                opened = True
                await _write_named(exchange, voice.opening(stream.sequence.prompt_tokens))
            if stream.due(self._settings.stream_interval_tokens):
                await _write_named(exchange, voice.spoken(spoken_text(stream.take())))
            if dies:
                return  # a stream without its end: the server closes the connection
        await _write_named(exchange, voice.closing(self._usage(request, streams, lie_hits), stream.finish_reason))
        await exchange.write(b"", more=False)

    async def _embed(
        self, exchange: Exchange, frame: AnswerFrame, request: GenerationRequest, streams: list[TokenStream]
    ) -> None:
        while not all(stream.finish_reason for stream in streams):
            await _tokens_arrive(streams)
        await exchange.answer_json(200, embeddings_answer(frame, request.prompts))

    async def _write_tokens(
        self, exchange: Exchange, frame: AnswerFrame, request: GenerationRequest, index: int, stream: TokenStream
    ) -> None:
        reason = stream.finish_reason
        chunk = text_chunk(frame, index, spoken_text(stream.take()), reason)
        if request.continuous_usage:
            sequence = stream.sequence
            chunk["usage"] = Usage(sequence.prompt_tokens, sequence.output_tokens, None).counts()
        await exchange.write_event(chunk)

    def _usage(
        self,
        request: GenerationRequest,
        streams: list[TokenStream],
        lie_hits: int,
        transfer: Params | None = None,
    ) -> Usage:
        """Like vLLM, a list of prompts reports the cached tokens of the last one only, and a pulled prompt those that
        its source had cached."""
        last = streams[-1].sequence
        cached: int | None = None
        created: int | None = None
        if self._settings.prompt_tokens_details:
            cached = last.cached_tokens or 0
            if transfer is not None and transfer.do_remote_prefill:
                cached = transfer.remote_prefill_cached_tokens or 0
            cached = min(last.prompt_tokens, cached + lie_hits)
            size = self._engine.limits.block_size_tokens
            created = max(0, last.prompt_tokens // size * size - cached) if request.chat else None
        return Usage(
            prompt_tokens=sum(len(prompt) for prompt in request.prompts),
            completion_tokens=sum(stream.sequence.output_tokens for stream in streams),
            cached_tokens=cached,
            created_cache_tokens=created,
        )


async def _write_named(exchange: Exchange, events: list[dict[str, Any]]) -> None:
    for event in events:
        await exchange.write_event(event, name=event["type"])


async def _tokens_arrive(streams: list[TokenStream]) -> None:
    ready = streams[0].ready
    await ready.wait()
    ready.clear()


def _check_media_type(exchange: Exchange) -> None:
    media_type = exchange.headers.get(b"content-type", b"application/json").split(b";")[0].strip().lower()
    if media_type != b"application/json":
        message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        raise RefusedRequest(400, message, kind="Bad Request")
