"""A server that looks like one vLLM 0.32 worker: routes, start, stop. `python -m simulator worker --port 9001`."""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import msgspec
import uvicorn

from simulator.answers import VERSION, models_page
from simulator.asgi import BodyTooLarge, Exchange, Message, Receive, Send
from simulator.dcgm import dcgm_page
from simulator.engine import Engine, EngineLimits
from simulator.events import KvEvent
from simulator.faults import METRICS_HUGE_BYTES, METRICS_SLOW_S, Faults, changed
from simulator.generation import Generation, GenerationSettings
from simulator.metrics import WorkerMetrics, garbage, huge, not_a_number
from simulator.nixl import Handover
from simulator.publisher import EventPublisher
from simulator.requests import RefusedRequest, parse_tokenize
from simulator.runner import EngineRunner
from simulator.timing import StepCost

log = logging.getLogger(__name__)

HASH_ALGORITHM = "sha256"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
QUEUED_REQUESTS_MAX = 2_048
"""Waiting requests beyond this are refused with 503."""
STOP_GRACE_S = 1
"""On SIGTERM, open streams are cut after this long."""


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    port: int
    host: str = "127.0.0.1"
    name: str = "w1"
    model: str = "sim-llama"
    events_port: int | None = None
    """None = `port` + 1000; 0 = no events."""
    replay_port: int | None = None
    """None = `port` + 2000."""
    limits: EngineLimits = field(default_factory=EngineLimits)
    cost: StepCost = field(default_factory=StepCost)
    time_scale: float = 1.0
    max_num_queued_reqs: int = QUEUED_REQUESTS_MAX
    stream_interval_tokens: int = 1
    prompt_tokens_details: bool = True
    nixl: bool = False
    """Whether it hands KV to other workers and pulls theirs (`simulator/nixl.py`)."""
    api_key: str | None = field(default=None, repr=False)
    seed: int = 0
    faults: Faults = field(default_factory=Faults)


class SimulatedWorker:
    """The ASGI application. Engine, sockets and background tasks live between lifespan start-up and shutdown."""

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        self.faults = config.faults
        self.engine = Engine(config.limits, config.cost)
        self.metrics = WorkerMetrics(model=config.model, engine=self.engine, hash_algorithm=HASH_ALGORITHM)
        self.publisher: EventPublisher | None = None
        self._dice = random.Random(f"{config.seed}/{config.name}")  # noqa: S311  repeatable faults, no secret
        self._runner = EngineRunner(
            self.engine, self.metrics, lambda: self.faults, self._publish, time_scale=config.time_scale
        )
        settings = GenerationSettings(
            model=config.model,
            prompt_tokens_details=config.prompt_tokens_details,
            stream_interval_tokens=config.stream_interval_tokens,
            max_num_queued_reqs=config.max_num_queued_reqs,
        )
        self.handover = self._handover() if config.nixl else None
        self._generation = Generation(settings, self.engine, self._runner, self.metrics, self._dice, self.handover)
        self._created = int(time.time())
        self._tasks: list[asyncio.Task[None]] = []

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._serve(_exchange(scope, receive, send))
        else:
            await send({"type": "websocket.close", "code": 1000})

    # life

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            self._start()
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": f"worker {self.config.name}: {error}"})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._stop()
        await send({"type": "lifespan.shutdown.complete"})

    def _start(self) -> None:
        config = self.config
        if config.events_port != 0:
            self.publisher = EventPublisher(
                host=config.host,
                port=config.events_port or config.port + 1_000,
                replay_port=config.replay_port or config.port + 2_000,
                topic=f"kv@{config.name}@{config.model}",
            )
            self._tasks.append(asyncio.create_task(self.publisher.serve_replays()))
        self._tasks.append(asyncio.create_task(self._runner.run()))
        for task in self._tasks:
            task.add_done_callback(_report_death)

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.publisher is not None:
            self.publisher.close()

    def _handover(self) -> Handover:
        return Handover(
            engine_id=uuid.uuid4().hex,
            host=self.config.host,
            port=self.config.port,
            free=lambda sequence: self.engine.free(sequence, time.monotonic()),
            time_scale=self.config.time_scale,
        )

    def _publish(self, events: list[KvEvent]) -> None:
        if self.publisher is not None:
            lost = self.faults.drop_events
            self.publisher.publish(events, at=time.time(), lost=lambda: self._dice.random() < lost)

    # routes

    async def _serve(self, exchange: Exchange) -> None:
        started = time.monotonic()
        routes = _ROUTES.get(exchange.path)
        if routes is None:
            await exchange.answer_json(404, {"detail": "Not Found"})
        elif exchange.method not in routes:
            exchange.extra_headers.append((b"allow", ", ".join(routes).encode()))
            await exchange.answer_json(405, {"detail": "Method Not Allowed"})
        else:
            await self._answer(routes[exchange.method], exchange)
        if exchange.path in _MEASURED_PATHS and exchange.status:
            self.metrics.observe_http(
                handler=exchange.path,
                method=exchange.method,
                status=exchange.status,
                request_bytes=exchange.request_bytes,
                response_bytes=exchange.response_bytes,
                duration_s=time.monotonic() - started,
            )

    async def _answer(self, route: Route, exchange: Exchange) -> None:
        if exchange.path.startswith("/v1/") and not self._authorized(exchange):
            await exchange.answer_json(401, {"error": "Unauthorized"})
            return
        try:
            await route(self, exchange)
        except RefusedRequest as refused:
            await exchange.answer_json(refused.status, refused.body)
        except BodyTooLarge:
            await exchange.answer_json(413, {"detail": "Request body too large"})
        except ConnectionError:
            log.debug("a client left before its request was complete")

    def _authorized(self, exchange: Exchange) -> bool:
        key = self.config.api_key
        return key is None or exchange.headers.get(b"authorization") == f"Bearer {key}".encode()

    async def chat_completions(self, exchange: Exchange) -> None:
        await self._generation.answer(exchange, self.faults, endpoint="chat")

    async def completions(self, exchange: Exchange) -> None:
        await self._generation.answer(exchange, self.faults, endpoint="text")

    async def messages(self, exchange: Exchange) -> None:
        await self._generation.answer(exchange, self.faults, endpoint="messages")

    async def responses(self, exchange: Exchange) -> None:
        await self._generation.answer(exchange, self.faults, endpoint="responses")

    async def embeddings(self, exchange: Exchange) -> None:
        await self._generation.answer(exchange, self.faults, endpoint="embeddings")

    async def models(self, exchange: Exchange) -> None:
        limits = self.engine.limits
        page = models_page(self.config.model, created=self._created, max_model_len=limits.max_model_len)
        await exchange.answer_json(200, page)

    async def tokenize(self, exchange: Exchange) -> None:
        tokens = parse_tokenize(await exchange.body(), model=self.config.model)
        limits = self.engine.limits
        page = {"count": len(tokens), "max_model_len": limits.max_model_len, "tokens": tokens, "token_strs": None}
        await exchange.answer_json(200, page)

    async def health(self, exchange: Exchange) -> None:
        await exchange.answer(200, b"", "text/plain; charset=utf-8")

    async def version(self, exchange: Exchange) -> None:
        await exchange.answer_json(200, {"version": VERSION})

    async def load(self, exchange: Exchange) -> None:
        await exchange.answer_json(200, {"server_load": self._generation.inflight})

    async def kv_event_sources(self, exchange: Exchange) -> None:
        await exchange.answer_json(200, self.publisher.sources() if self.publisher else {})

    async def hand_over(self, exchange: Exchange) -> None:
        """The side channel: another worker pulls what was offered."""
        asked = {name: values[0].decode() for name, values in parse_qs(exchange.query).items()}
        tokens = None
        if self.handover is not None and not self.faults.drop_offers:
            tokens = self.handover.give(asked.get(b"engine", ""), asked.get(b"request", ""))
        if tokens is None:
            await exchange.answer_json(404, {"error": "no such offer"})
        else:
            await exchange.answer_json(200, {"tokens": tokens})

    async def reset_prefix_cache(self, exchange: Exchange) -> None:
        """The clear event goes out with the next request's batch, as on a real worker."""
        await exchange.answer_json(200, {"success": self.engine.cache.clear()})

    async def metrics_page(self, exchange: Exchange) -> None:
        names = [name.decode() for name in parse_qs(exchange.query).get(b"name[]", [])]
        fault = self.faults.metrics
        if fault == "reset":
            self.metrics.reset()
            self.faults = changed(self.faults, {"metrics": None})
        elif fault == "slow":
            await asyncio.sleep(METRICS_SLOW_S)
        page = self.metrics.page(names)
        if fault == "garbage":
            page = garbage(page)
        elif fault == "nan":
            page = not_a_number(page)
        elif fault == "huge":
            page = huge(page, METRICS_HUGE_BYTES)
        await exchange.answer(200, page, METRICS_TYPE)

    async def dcgm_metrics(self, exchange: Exchange) -> None:
        busy_share = self._runner.busy_share()
        page = dcgm_page(engine=self.engine, name=self.config.name, gpu_index=0, busy_share=busy_share)
        await exchange.answer(200, page, METRICS_TYPE)

    async def show_faults(self, exchange: Exchange) -> None:
        await exchange.answer_json(200, self.faults)

    async def set_faults(self, exchange: Exchange) -> None:
        try:
            self.faults = changed(self.faults, msgspec.json.decode(await exchange.body()))
        except (msgspec.DecodeError, ValueError) as error:
            await exchange.answer_json(400, {"error": str(error)})
            return
        await exchange.answer_json(200, self.faults)


Route = Callable[[SimulatedWorker, Exchange], Awaitable[None]]

_ROUTES: dict[str, dict[str, Route]] = {
    "/v1/chat/completions": {"POST": SimulatedWorker.chat_completions},
    "/v1/completions": {"POST": SimulatedWorker.completions},
    "/v1/messages": {"POST": SimulatedWorker.messages},
    "/v1/responses": {"POST": SimulatedWorker.responses},
    "/v1/embeddings": {"POST": SimulatedWorker.embeddings},
    "/v1/models": {"GET": SimulatedWorker.models},
    "/tokenize": {"POST": SimulatedWorker.tokenize},
    "/health": {"GET": SimulatedWorker.health},
    "/ping": {"GET": SimulatedWorker.health, "POST": SimulatedWorker.health},
    "/version": {"GET": SimulatedWorker.version},
    "/load": {"GET": SimulatedWorker.load},
    "/kv_event_sources": {"GET": SimulatedWorker.kv_event_sources},
    "/reset_prefix_cache": {"POST": SimulatedWorker.reset_prefix_cache},
    "/metrics": {"GET": SimulatedWorker.metrics_page},
    "/metrics/": {"GET": SimulatedWorker.metrics_page},
    "/dcgm/metrics": {"GET": SimulatedWorker.dcgm_metrics},
    "/sim/kv": {"POST": SimulatedWorker.hand_over},
    "/sim/faults": {"GET": SimulatedWorker.show_faults, "POST": SimulatedWorker.set_faults},
}
_MEASURED_PATHS = frozenset(
    (
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/messages",
        "/v1/responses",
        "/v1/embeddings",
        "/v1/models",
        "/tokenize",
        "/kv_event_sources",
        "/reset_prefix_cache",
    )
)
"""Real workers leave health and metrics out of their http_* series."""


def serve(config: WorkerConfig) -> None:
    """Serve until SIGINT or SIGTERM."""
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    settings: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": True}
    uvicorn.run(
        SimulatedWorker(config),
        host=config.host,
        port=config.port,
        loop="uvloop",
        http="httptools",
        lifespan="on",
        timeout_graceful_shutdown=STOP_GRACE_S,
        **settings,
    )


def _exchange(scope: Message, receive: Receive, send: Send) -> Exchange:
    headers = dict(scope["headers"])
    asked_id = headers.get(b"x-request-id", b"").decode("latin-1")
    return Exchange(
        method=scope["method"],
        path=scope["path"],
        query=scope["query_string"],
        headers=headers,
        receive=receive,
        send=send,
        request_id=asked_id or uuid.uuid4().hex,
    )


def _report_death(task: asyncio.Task[None]) -> None:
    """A background task that ends by itself is a defect of the simulator: say so."""
    if not task.cancelled() and task.exception() is not None:
        log.error("simulator task died", exc_info=task.exception())
