"""One request from its bytes to its record: the file that orders the steps, top to bottom.

    parse → resolve → fingerprint → choose → reserve → send → relay → release → record

Between resolving and reserving nothing awaits, so decisions are made one at a time and need no locks. A reservation
is released in exactly one place, `_attempt`'s `finally`, whether the answer was relayed, failed or the client left.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec
import structlog

from router.contract.ids import TemplateRef, WorkerId
from router.core.model import Assessment, Decision, Grant, NoWorker, Outcome, Reservation, RoutingError, RoutingRequest
from router.core.table import RoutingTable
from router.http import openai
from router.http.answer_head import AnswerHead
from router.http.answers import full_answer, relayed_head, stream_error
from router.http.chunked import LAST_CHUNK, chunk
from router.http.errors import EdgeError, Internal, Overloaded, Refused, UpstreamError, UpstreamTimeout
from router.http.protocol import ClientConnection, HttpRequest
from router.http.relay import ChunkedRelay, LengthRelay, Relay, StreamRelay
from router.http.upstream import StaleConnection, UpstreamFailed, Upstreams, WorkerConnection, WorkerPool
from router.logs import place_of

log = structlog.get_logger("router.service")

CHAT_PATH = b"/v1/chat/completions"
MODELS_PATH = b"/v1/models"
ATTEMPTS_MAX = 2
"""The first worker and one other (A3)."""
RELAYED_ERRORS = frozenset((400, 413, 422))
"""Worker statuses that are about the request: the client gets the worker's own words."""
SESSION_CHARS_MAX = 256
RETRY_RESERVE = 10.0
"""Retries a router may spend before any request has earned one."""
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
NO_TEMPLATE = TemplateRef("")
CLIENT_LEFT = Outcome(ok=False, error="client_disconnect", status=499)


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    worker_inflight_max: int
    connect_timeout_s: float
    stream_head_timeout_s: float
    first_byte_timeout_s: float
    answer_timeout_s: float
    retry_budget_share: float
    sample_share: float = 0.01


NOT_FINISHED = Outcome(ok=False, error="internal", status=500)


@dataclass(slots=True)
class Call:
    """One request from its head to its end; with its outcome it is all that telemetry wants to know."""

    request_id: str
    received_at: float
    """Loop time."""
    path: bytes
    traceparent: bytes | None
    sampled: bool = False
    api: openai.ApiRequest | None = None
    grant: Grant | None = None
    template: TemplateRef = NO_TEMPLATE
    template_ignored: bool = False
    body: bytes = b""
    retries: int = 0
    decision_us: float | None = None
    decision: Decision | None = None
    outcome: Outcome = NOT_FINISHED
    assessment: Assessment | None = None


class Recorder(Protocol):
    def record(self, call: Call) -> None:
        """Count a finished call. It must not be kept: it holds what the client sent."""


class RetryBudget:
    """A token for every 1/share requests: retries stay below that share of the traffic."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._tokens = RETRY_RESERVE if share > 0 else 0.0

    def earn(self) -> None:
        self._tokens = min(self._tokens + self._share, RETRY_RESERVE)

    def take(self) -> bool:
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class RouterService:
    def __init__(
        self,
        *,
        table: RoutingTable,
        upstreams: Upstreams,
        recorder: Recorder,
        limits: ServiceLimits,
        worker_api_key: str,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self._table = table
        self._upstreams = upstreams
        self._recorder = recorder
        self._limits = limits
        self._authorization = f"authorization: Bearer {worker_api_key}\r\n".encode() if worker_api_key else b""
        self._clock = clock
        self._rng = rng
        self._loop = asyncio.get_running_loop()
        self._retry_budget = RetryBudget(limits.retry_budget_share)
        self.inflight = 0

    async def serve(self, request: HttpRequest, client: ClientConnection) -> None:
        call = Call(request.request_id, request.received_at, request.head.path, request.head.traceparent)
        self.inflight += 1
        try:
            if call.path == MODELS_PATH:
                self._list_models(request, client)
            else:
                self._prepare(call, request)
                await self._route(call, client)
        except EdgeError as error:
            self._answer_error(call, error, client)
        except RoutingError as error:
            self._answer_error(call, Refused(error), client)
        except asyncio.CancelledError:
            # The client left; `_attempt` has released and recorded. The task ends here, nobody waits for it.
            pass
        except Exception as error:
            _log_mistake(error, call.request_id)
            self._answer_error(call, Internal("The router failed to handle this request."), client)
        finally:
            self.inflight -= 1
            client.done()

    def refused(self, error: EdgeError) -> None:
        """What the edge refused before it was a request."""
        self._record(Call("", 0.0, b"", None), Outcome(ok=False, error=error.kind, status=error.status), None)

    # before a worker is chosen

    def _list_models(self, request: HttpRequest, client: ClientConnection) -> None:
        names = self._table.visible_models(api_key=_bearer(request.head.authorization), now=self._clock())
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "tidemark"} for name in names]
        body = msgspec.json.encode({"object": "list", "data": data})
        client.write(full_answer(200, body, request_id=request.request_id, keep_alive=client.keep_alive))

    def _prepare(self, call: Call, request: HttpRequest) -> None:
        call.api = api = openai.parse(request.body, chat=call.path == CHAT_PATH)
        key = _bearer(request.head.authorization)
        call.grant = grant = self._table.resolve(api_key=key, model=api.model, now=self._clock())
        call.template = _template(request.head.template, grant)
        call.template_ignored = request.head.template is not None and not call.template
        call.body = openai.upstream_body(api, salt=grant.salt, unknown_fields=grant.policy.unknown_fields)
        call.sampled = self._rng.random() < self._limits.sample_share
        self._retry_budget.earn()
        api.user = _session(request.head.session, api.user)

    # choosing, and asking up to two workers

    async def _route(self, call: Call, client: ClientConnection) -> None:
        tried: frozenset[WorkerId] = frozenset()
        failure: UpstreamFailed | None = None
        for attempt in range(ATTEMPTS_MAX):
            call.retries = attempt
            try:
                decision, reservation, pool = self._choose(call, tried)
            except NoWorker:
                if failure is None:
                    raise
                break
            failure = await self._attempt(call, decision, reservation, pool, client)
            if failure is None or client.begun:
                break
            if attempt + 1 == ATTEMPTS_MAX or not self._retry_budget.take():
                break
            tried |= {decision.worker}
        if failure is not None:
            self._give_up(call, failure, client)

    def _choose(self, call: Call, tried: frozenset[WorkerId]) -> tuple[Decision, Reservation, WorkerPool]:
        """Fingerprint, choose, reserve. Not a coroutine: nothing can happen between the choice and its reservation."""
        assert call.api is not None and call.grant is not None
        started_ns = time.perf_counter_ns()
        text = call.api.text
        request = RoutingRequest(
            request_id=call.request_id,
            grant=call.grant,
            fingerprint=None if text is None else self._table.fingerprint(call.grant, text, template=call.template),
            session=call.api.user,
            max_tokens=call.api.max_tokens,
            template=call.template,
            exclude=tried,
        )
        now = self._clock()
        while True:
            decision = self._table.choose(request, now=now, explain=call.sampled)
            pool = self._pool_with_room(decision.url)
            if pool is not None:
                break
            # A worker at its limit of open requests is passed over; this is no retry, it has not been asked.
            request = dataclasses.replace(request, exclude=request.exclude | {decision.worker})
        reservation = self._table.reserve(decision, now=now)
        call.decision = decision
        call.decision_us = (time.perf_counter_ns() - started_ns) / 1000
        return decision, reservation, pool

    async def _attempt(
        self, call: Call, decision: Decision, reservation: Reservation, pool: WorkerPool, client: ClientConnection
    ) -> UpstreamFailed | None:
        """One worker asked, and its reservation released. Returns the failure when it gave no good answer."""
        outcome = CLIENT_LEFT
        failure: UpstreamFailed | None = None
        try:
            outcome = await self._forward(call, reservation, pool, client)
            if outcome.error == "upstream_died":
                self._table.worker_failed(decision.worker, now=self._clock())
            else:
                self._table.worker_ok(decision.worker, now=self._clock())
        except UpstreamFailed as error:
            failure = error
            outcome = Outcome(ok=False, error=error.kind, status=error.status)
            if error.counts:
                self._table.worker_failed(decision.worker, now=self._clock())
            log.warning(
                "worker_failed", worker=decision.worker, kind=error.kind, why=error.reason, request_id=call.request_id
            )
        finally:
            assessment = self._table.release(reservation, outcome, now=self._clock())
            if failure is None:
                self._record(call, outcome, assessment)
        return failure

    async def _forward(
        self, call: Call, reservation: Reservation, pool: WorkerPool, client: ClientConnection
    ) -> Outcome:
        """Send, wait for the first body byte, relay. Raises UpstreamFailed."""
        assert call.api is not None
        stream = call.api.stream
        connection, head = await self._ask(call, pool, stream)
        reusable = False
        try:
            _check_answer(head, stream)
            streams = stream and head.status == 200
            if streams:
                self._table.first_byte(reservation, now=self._clock())
            relay = _relay_for(head, stream=streams, strip_usage=not call.api.wants_usage)
            client_head = relayed_head(
                head,
                request_id=call.request_id,
                keep_alive=client.keep_alive,
                stream=not isinstance(relay, LengthRelay),
            )
            client.attach(connection)
            await connection.relay(relay, client, client_head=client_head)
            if relay.truncated:
                raise UpstreamFailed("upstream_died", "the stream ended without its end mark")
            reusable = relay.reusable
            return self._outcome(call, head, relay, connection.first_body_at if streams else None)
        finally:
            client.attach(None)
            connection.release(reusable=reusable)

    async def _ask(self, call: Call, pool: WorkerPool, stream: bool) -> tuple[WorkerConnection, AnswerHead]:
        limits = self._limits
        data = self._upstream_request(call, pool)
        head_timeout_s = limits.stream_head_timeout_s if stream else limits.answer_timeout_s
        body_timeout_s = limits.first_byte_timeout_s if stream else limits.answer_timeout_s
        while True:
            connection = pool.take_idle() or await pool.connect(timeout_s=limits.connect_timeout_s)
            try:
                head = await connection.ask(data, head_timeout_s=head_timeout_s, body_timeout_s=body_timeout_s)
            except StaleConnection:
                continue
            except BaseException:
                connection.release(reusable=False)
                raise
            return connection, head

    def _upstream_request(self, call: Call, pool: WorkerPool) -> bytes:
        """Framed by us alone: of the client's headers only a well-formed traceparent goes on."""
        trace = b""
        if call.traceparent is not None and _TRACEPARENT.fullmatch(call.traceparent):
            trace = b"traceparent: %b\r\n" % call.traceparent
        return (
            b"POST %b HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\nx-request-id: %b\r\n%b%b"
            b"content-length: %d\r\n\r\n%b"
        ) % (
            call.path, pool.host_header, call.request_id.encode(), self._authorization, trace, len(call.body),
            call.body,
        )  # fmt: skip

    def _pool_with_room(self, url: str) -> WorkerPool | None:
        try:
            pool = self._upstreams.pool(url)
        except UpstreamFailed as error:
            log.error("worker_url_refused", why=error.reason)
            return None
        return pool if pool.busy < self._limits.worker_inflight_max else None

    # after the answer

    def _outcome(self, call: Call, head: AnswerHead, relay: Relay, first_body_at: float | None) -> Outcome:
        usage = relay.usage
        return Outcome(
            ok=head.status == 200 and not relay.failed,
            error=relay.failed or ("" if head.status == 200 else "bad_request"),
            status=head.status,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            ttft_ms=None if first_body_at is None else (first_body_at - call.received_at) * 1000,
            duration_ms=(self._loop.time() - call.received_at) * 1000,
        )

    def _give_up(self, call: Call, failure: UpstreamFailed, client: ClientConnection) -> None:
        """No worker gave a good answer: say so, inside the stream when it has begun."""
        outcome = Outcome(
            ok=False,
            error=failure.kind,
            status=failure.status,
            duration_ms=(self._loop.time() - call.received_at) * 1000,
        )
        error = _client_error(failure)
        if not client.begun:
            client.answer_error(error, call.request_id)
        else:
            client.keep_alive = False
            if call.api is not None and call.api.stream:
                client.write(chunk(stream_error(error)) + LAST_CHUNK)
        self._record(call, outcome, None)

    def _answer_error(self, call: Call, error: EdgeError, client: ClientConnection) -> None:
        if client.begun:
            client.keep_alive = False
        else:
            client.answer_error(error, call.request_id)
        self._record(call, Outcome(ok=False, error=error.kind, status=error.status), None)

    def _record(self, call: Call, outcome: Outcome, assessment: Assessment | None) -> None:
        call.outcome = outcome
        call.assessment = assessment
        self._recorder.record(call)


def _bearer(authorization: bytes | None) -> str | None:
    if authorization is None or authorization[:7].lower() != b"bearer ":
        return None
    return authorization[7:].strip().decode("latin-1")


def _session(header: bytes | None, user: str | None) -> str | None:
    """The header wins; both are bounded (C61: hashed by the core, never kept as text)."""
    if header:
        return header.decode("latin-1")[:SESSION_CHARS_MAX]
    return user


def _template(header: bytes | None, grant: Grant) -> TemplateRef:
    """A template the namespace may name, else none: a wrong name changes no answer."""
    if header is None:
        return TemplateRef("")
    name = header.decode("latin-1")
    return TemplateRef(name) if name in grant.policy.templates else TemplateRef("")


def _check_answer(head: AnswerHead, stream: bool) -> None:
    """Raises UpstreamFailed for every answer that must not reach a client."""
    status = head.status
    if status == 200:
        if head.content_type.startswith(b"text/event-stream" if stream else b"application/json"):
            return
        raise UpstreamFailed("upstream_error", "the worker answered with another kind of content")
    if status in RELAYED_ERRORS and head.content_type.startswith(b"application/json"):
        return
    overloaded = status in (429, 503)
    raise UpstreamFailed(
        "upstream_error",
        f"the worker answered with status {status}",
        status=503 if overloaded else 502,
        # Its word about the request or its own set-up is no sign of ill health.
        counts=status >= 500 or status == 429,
    )


def _relay_for(head: AnswerHead, *, stream: bool, strip_usage: bool) -> Relay:
    if stream:
        return StreamRelay(chunked=head.chunked, strip_usage=strip_usage)
    if head.content_length is not None:
        return LengthRelay(head.content_length)
    return ChunkedRelay(chunked=head.chunked)


def _client_error(failure: UpstreamFailed) -> EdgeError:
    """Uniform words: neither which worker nor why (S6)."""
    if failure.kind == "upstream_timeout":
        return UpstreamTimeout("The model server did not answer in time.")
    if failure.status == 503:
        return Overloaded("The model servers are overloaded. Try again shortly.")
    if failure.kind == "upstream_died":
        return UpstreamError("The model server stopped before the answer was complete.", code="upstream_died")
    return UpstreamError("The model server failed to answer.")


def _log_mistake(error: Exception, request_id: str) -> None:
    """Type and place only (S19)."""
    log.error("request_failed_by_mistake", error=type(error).__name__, place=place_of(error), request_id=request_id)
