"""One request from its bytes to its record: the file that orders the steps, top to bottom.

    serve          parse → resolve → fingerprint → choose → reserve → send     (a long unseen prompt is awaited first)
    answer_begun   the worker's head is checked, the relay begins            ┐ called by the worker's connection
    answer_complete / answer_failed   release → record, or another worker    ┘
    client_left    release → record                                            called by the client's connection

A request is a `Call` (`call.py`, with the table of its states) that these calls carry from state to state. Only opening
a connection to a worker awaits, and in exact mode tokenising a long text that was never seen, before anything is
reserved.

Between resolving and reserving nothing awaits, so decisions are made one at a time and need no locks. A reservation
is released, and the worker's connection let go, in exactly one place: `_let_go`.

Where the choice says that the chosen worker pulls the prompt's KV from another one, that one is asked first (`pull`,
with a reservation and a connection of its own, given back in `_end_pull`). Whatever goes wrong before the client's
first byte, the request is decided anew as if there were no connector (`_without_pull`): no client sees a failed pull.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from time import monotonic, perf_counter_ns
from typing import Final

import msgspec
import structlog

from router.call import Call, Steps
from router.contract.ids import PoolId, TemplateRef, WorkerId
from router.core.exact.chains import ExactPrefix
from router.core.model import ExactPrompt, Grant, Outcome, RoutingError, RoutingRequest
from router.core.retry_budget import RetryBudget
from router.core.table import RoutingTable
from router.http import openai
from router.http.answer_head import AnswerHead
from router.http.answers import full_answer, relayed_head
from router.http.chunked import LAST_CHUNK, chunk
from router.http.endpoints import CHAT, ENDPOINTS
from router.http.error_shapes import event_for
from router.http.errors import EdgeError, Internal, Refused
from router.http.head import Head
from router.http.named_events import NamedEventRelay
from router.http.plain_chat import only_message, read_plain
from router.http.prompt_fields import prompt_fields
from router.http.protocol import ClientConnection
from router.http.pull_bodies import Offer, begins_with_error, may_pull, source_body, with_offer
from router.http.pulling import Pull, patience_s
from router.http.relay import LengthRelay, Relay, StreamRelay
from router.http.upstream import StaleConnection, UpstreamFailed, Upstreams, WorkerConnection, WorkerPool
from router.http.usage import read_usage
from router.http.worker_answers import check_answer, client_error, stream_relay, whole_relay
from router.http.worker_request import request_head
from router.logs import place_of
from router.partners import ExactPrompts, Recorder

log = structlog.get_logger("router.service")

MODELS_PATH: Final = b"/v1/models"
ATTEMPTS_MAX: Final = 2
"""The first worker and one other (A3)."""
SESSION_CHARS_MAX: Final = 256
CLIENT_LEFT: Final = Outcome(ok=False, error="client_disconnect", status=499)
FELL_BACK: Final = Outcome(ok=False, error="upstream_error", status=502)
"""Of a pull that failed, for the ledger alone."""


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    worker_inflight_max: int
    connect_timeout_s: float
    stream_head_timeout_s: float
    first_byte_timeout_s: float
    answer_timeout_s: float
    retry_budget_share: float
    sample_share: float = 0.01


class RouterService(Steps):
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
        exact: ExactPrompts | None = None,
    ) -> None:
        """`exact` None: every pool is approximate."""
        self._table = table
        self._upstreams = upstreams
        self._recorder = recorder
        self._limits = limits
        self._authorization = f"authorization: Bearer {worker_api_key}\r\n".encode() if worker_api_key else b""
        self._clock = clock
        self._rng = rng
        self._loop = asyncio.get_running_loop()
        self._retry_budget = RetryBudget(limits.retry_budget_share)
        self._exact = exact
        self._exact_pools: Mapping[PoolId, object] = {} if exact is None else exact.pools
        self._proofs = table.proofs
        self.inflight = 0

    def serve(self, head: Head, body: bytes, client: ClientConnection, *, request_id: str) -> None:
        """A whole request: ends with it sent to a worker, or answered."""
        call = Call(self, head, client, request_id)
        client.call = call
        self.inflight += 1
        try:
            if head.path == MODELS_PATH:
                self._list_models(call)
            else:
                self._prepare(call, body)
                if not self._exact_pools or not self._reads_on(call):
                    self._ask_worker(call)
        except Exception as error:
            self.broken_off(call, error)

    def refused(self, error: EdgeError) -> None:
        """What the edge refused before it was a request."""
        self._recorder.record_refusal(error.kind)

    # before a worker is chosen

    def _list_models(self, call: Call) -> None:
        client = call.client
        names = self._table.visible_models(api_key=call.head.api_key, now=self._clock())
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "tidemark"} for name in names]
        body = msgspec.json.encode({"object": "list", "data": data})
        client.write(full_answer(200, body, request_id=call.request_id, keep_alive=client.keep_alive))
        self._finish(call, recorded=False)

    def _prepare(self, call: Call, body: bytes) -> None:
        head = call.head
        plain = read_plain(body) if head.path == CHAT.path else None
        call.api = api = plain or openai.parse_for(ENDPOINTS[head.path], body)
        started_ns = 0
        if self._rng.random() < self._limits.sample_share:
            call.sampled = True
            started_ns = perf_counter_ns()
        call.grant = grant = self._table.resolve(
            api_key=head.api_key, model=api.model, now=self._clock(), lease_now=call.received_at
        )
        if call.sampled:
            call.auth_us = (perf_counter_ns() - started_ns) / 1000
        if grant.public is not None and (message := only_message(api)) is not None:
            call.grant = grant = self._table.grant_for(grant, role=message[0], text=message[1])
        if head.template is not None:
            call.template = _template(head.template, grant)
            call.template_ignored = not call.template
        call.body = openai.upstream_body(api, salt=grant.salt, unknown_fields=grant.policy.unknown_fields)
        self._retry_budget.earn()
        if head.session:
            # The header wins over `user`; both are bounded (C61: hashed by the core, never kept as text).
            api.user = head.session.decode("latin-1")[:SESSION_CHARS_MAX]

    def _reads_on(self, call: Call) -> bool:
        """Reads the prompt of an exact pool; whether the call goes on by itself when that is done."""
        grant, api = call.grant, call.api
        assert grant is not None and api is not None
        started_ns = perf_counter_ns()
        found = self._read(grant, api)
        call.reading_us = (perf_counter_ns() - started_ns) / 1000
        if found is None or isinstance(found, ExactPrefix):
            call.prefix = found
            return False
        call.connecting = self._loop.create_task(self._read_on(call, found))
        return True

    def _read(
        self, grant: Grant, api: openai.ApiRequest
    ) -> ExactPrefix | Callable[[], Awaitable[ExactPrefix | None]] | None:
        if self._exact is None or grant.pool not in self._exact_pools:
            return None
        fields = prompt_fields(api, unknown_fields=grant.policy.unknown_fields)
        return None if fields is None else self._exact.read(grant, fields, kind=api.endpoint.name)

    async def _read_on(self, call: Call, reading: Callable[[], Awaitable[ExactPrefix | None]]) -> None:
        try:
            call.prefix = await reading()
            call.connecting = None
            self._ask_worker(call)
        except Exception as error:
            call.connecting = None
            self.broken_off(call, error)

    async def exact_prompt(self, grant: Grant, api: openai.ApiRequest) -> ExactPrompt | None:
        """For explanations: what the workers hold of a prompt; None where it cannot be had."""
        found = self._read(grant, api)
        prefix = found if found is None or isinstance(found, ExactPrefix) else await found()
        return None if self._exact is None or prefix is None else self._exact.prompt(grant, prefix)

    # choosing a worker and asking it

    def _ask_worker(self, call: Call) -> None:
        """Raises NoWorker and what else the core refuses with."""
        call.pool = pool = self._choose(call)
        if call.decision is not None and call.decision.source is not None:
            self._begin_pull(call)
        else:
            self._ask_chosen(call, pool)

    def _ask_chosen(self, call: Call, pool: WorkerPool) -> None:
        connection = pool.take_idle()
        if connection is not None:
            self._send(call, pool, connection)
        else:
            call.connecting = self._loop.create_task(self._connect(call, pool))

    def _choose(self, call: Call) -> WorkerPool:
        """Fingerprint, choose, reserve; gives the worker's connections. Nothing awaits in between."""
        api, grant = call.api, call.grant
        assert api is not None and grant is not None
        started_ns = perf_counter_ns()
        table, text = self._table, api.text
        fingerprint = None if text is None else table.fingerprint(grant, text, template=call.template)
        if call.sampled:
            call.fingerprint_us = (perf_counter_ns() - started_ns) / 1000
        exact = None
        if call.prefix is not None and self._exact is not None:
            exact = self._exact.prompt(grant, call.prefix)
        request = RoutingRequest(
            request_id=call.request_id,
            grant=grant,
            fingerprint=fingerprint,
            session=api.user,
            max_tokens=api.max_tokens,
            template=call.template,
            form=api.form,
            exclude=call.tried,
            exact=exact,
            may_pull=exact is not None and self._may_pull(call, api, grant.pool),
            admitted=call.pull_result != "",
        )
        now = self._clock()
        while True:
            decision = table.choose(request, now=now, explain=call.sampled or grant.explains)
            pool = self._pool_with_room(decision.url)
            source = decision.source
            if pool is not None and source is not None and self._pool_with_room(source.url) is None:
                request = request.without_pull()
                continue
            if pool is not None:
                break
            # A worker at its limit of open requests is passed over; this is no retry, it has not been asked.
            request = request.excluding(decision.worker)
        call.reservation = table.reserve(decision, now=now)
        call.decision = decision
        call.decision_us = call.reading_us + (perf_counter_ns() - started_ns) / 1000
        return pool

    def _may_pull(self, call: Call, api: openai.ApiRequest, pool: PoolId) -> bool:
        """While retries have a budget: a pull that fails takes of it, so a broken connector doubles no load."""
        return (
            not call.pull_result
            and self._table.may_pull(pool, now=self._clock())
            and self._retry_budget.left
            and may_pull(api)
        )

    def _begin_pull(self, call: Call) -> None:
        """Ask the source to compute what it lacks of the prompt, and to offer its KV."""
        api, grant, decision = call.api, call.grant, call.decision
        assert api is not None and grant is not None and decision is not None and decision.source is not None
        source = decision.source
        body = source_body(api, salt=grant.salt, unknown_fields=grant.policy.unknown_fields)
        pool = self._upstreams.pool(source.url)
        call.pulled_from, call.pull_began_at = source.worker, monotonic()
        call.pull = Pull(
            call,
            pool,
            self._table.reserve_source(decision, now=self._clock()),
            (self._request_head(call, pool, body), body),
            within_s=patience_s(source.answer_ms, most_s=self._limits.answer_timeout_s),
            loop=self._loop,
        )
        call.pull.start(connect_timeout_s=self._limits.connect_timeout_s)

    async def _connect(self, call: Call, pool: WorkerPool) -> None:
        started_at = monotonic()
        try:
            connection = await pool.connect(timeout_s=self._limits.connect_timeout_s)
            call.connect_ms += (monotonic() - started_at) * 1000
            call.connecting = None
            self._send(call, pool, connection)
        except Exception as error:
            call.connecting = None
            self.broken_off(call, error)

    def _send(self, call: Call, pool: WorkerPool, connection: WorkerConnection) -> None:
        """Raises UpstreamFailed."""
        limits = self._limits
        assert call.api is not None
        stream = call.api.stream
        call.connection = connection
        body = with_offer(call.body, call.offer) if call.offer else call.body
        connection.ask(
            call,
            (self._request_head(call, pool, body), body),
            head_timeout_s=limits.stream_head_timeout_s if stream else limits.answer_timeout_s,
            body_timeout_s=limits.first_byte_timeout_s if stream else limits.answer_timeout_s,
        )

    def _request_head(self, call: Call, pool: WorkerPool, body: bytes) -> bytes:
        grant, extra = call.grant, b""
        if grant is not None and grant.pool in self._proofs.guarded:
            extra = self._proofs.header(grant.pool, grant.salt, now=self._clock())
        return request_head(
            pool,
            call.head.path,
            authorization=self._authorization,
            request_id=call.request_id,
            traceparent=call.head.traceparent,
            extra=extra,
            body_bytes=len(body),
        )

    def _pool_with_room(self, url: str) -> WorkerPool | None:
        try:
            pool = self._upstreams.pool(url)
        except UpstreamFailed as error:
            log.error("worker_url_refused", why=error.reason)
            return None
        return pool if pool.busy < self._limits.worker_inflight_max else None

    # a pull

    def pull_answered(self, call: Call, offer: Offer, *, reusable: bool) -> None:
        """The chosen worker is asked, with the offer. Raises UpstreamFailed."""
        decision, pool = call.decision, call.pool
        assert decision is not None and decision.source is not None and pool is not None
        usage = read_usage(offer.body)
        outcome = Outcome(
            ok=True,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
        )
        self._table.worker_ok(decision.source.worker, now=self._clock())
        self._end_pull(call, outcome, reusable=reusable)
        call.pull_ms, call.offer = (monotonic() - call.pull_began_at) * 1000, offer.raw
        self._ask_chosen(call, pool)

    def pull_failed(self, call: Call, failure: UpstreamFailed) -> None:
        # Out of patience is no sign of ill health: the source may only be busy.
        if failure.counts and failure.kind != "upstream_timeout":
            self._table.worker_failed(WorkerId(call.pulled_from), now=self._clock())
        self._without_pull(call, failure)

    def _without_pull(self, call: Call, failure: UpstreamFailed) -> None:
        """Nothing has reached the client: the request is decided anew, as if workers could not pull."""
        log.warning("pull_fell_back", source=call.pulled_from, why=failure.reason, request_id=call.request_id)
        grant = call.grant
        assert grant is not None
        if failure.kind != "bad_request":
            self._table.pull_ended(grant.pool, ok=False, now=self._clock())
        self._retry_budget.take()
        self._let_go(call, FELL_BACK)
        call.pull_result, call.offer = "fell_back", b""
        call.pull_ms = (monotonic() - call.pull_began_at) * 1000
        try:
            self._ask_worker(call)
        except Exception as error:
            self.broken_off(call, error)

    def _end_pull(self, call: Call, outcome: Outcome, *, reusable: bool = False) -> None:
        """The one place where the source's reservation is released and its connection let go."""
        pull, call.pull = call.pull, None
        if pull is None:
            return
        pull.let_go(reusable=reusable)
        if outcome.ok and call.reservation is not None:
            self._table.pulled(call.reservation, pull.reservation, outcome, now=self._clock())
        else:
            self._table.release(pull.reservation, outcome, now=self._clock())

    # the answer

    def answer_begun(self, call: Call) -> None:
        """Head and first body byte are here: check, and pass on. Raises UpstreamFailed, before the first byte."""
        connection, client, api = call.connection, call.client, call.api
        assert connection is not None and connection.head is not None and api is not None
        head = connection.head
        if call.offer:
            self._check_pulled(call, connection, head)
        check_answer(head, api.stream, core_endpoint=api.endpoint.speech == "openai")
        streams = api.stream and head.status == 200
        call.relay = relay = self._relay_for(call, head) if streams else whole_relay(head)
        client_head = relayed_head(
            head,
            request_id=call.request_id,
            keep_alive=client.keep_alive,
            stream=type(relay) is not LengthRelay,
            extra=call.decision_line(),
        )
        client.attach(connection)
        connection.relay(relay, client, client_head=client_head)
        if relay.complete:
            self.answer_complete(call)

    def _check_pulled(self, call: Call, connection: WorkerConnection, head: AnswerHead) -> None:
        """Raises UpstreamFailed for any answer but a good one: what the pull did to it is not the client's concern."""
        if head.status != 200 or begins_with_error(connection.begun_with):
            raise UpstreamFailed("upstream_error", f"it did not pull: status {head.status}", counts=False)
        assert call.grant is not None
        call.pull_result = "ok"
        self._table.pull_ended(call.grant.pool, ok=True, now=self._clock())

    def _relay_for(self, call: Call, head: AnswerHead) -> Relay:
        api, connection = call.api, call.connection
        assert api is not None and connection is not None
        speech, on_output = api.endpoint.speech, None
        if speech == "responses":
            # Its first events are sent before the prompt is looked at, so the first byte says nothing.
            on_output = lambda: self._output_begun(call, monotonic())  # noqa: E731
        else:
            self._output_begun(call, connection.first_body_at)
        return stream_relay(speech, head, strip_usage=not api.wants_usage, on_output=on_output)

    def _output_begun(self, call: Call, at: float) -> None:
        """The worker has read the prompt. `at` is in monotonic seconds."""
        call.output_at = at
        if call.reservation is not None:
            self._table.first_byte(call.reservation, now=self._clock())

    def answer_complete(self, call: Call) -> None:
        """Raises UpstreamFailed for a stream that ended without its end mark."""
        relay, decision = call.relay, call.decision
        assert relay is not None and decision is not None
        if relay.truncated:
            raise UpstreamFailed("upstream_died", "the stream ended without its end mark")
        outcome = call.outcome_of(relay)
        if relay.failed:
            self._table.worker_failed(decision.worker, now=self._clock())
        else:
            self._table.worker_ok(decision.worker, now=self._clock())
        self._let_go(call, outcome, reusable=relay.reusable)
        if self._exact_pools and self._exact is not None:
            self._exact.answered(call)
        self._finish(call)

    def broken_off(self, call: Call, error: Exception) -> None:
        """Whatever went wrong, from any state: another worker is asked, or the request ends with an error."""
        if call.finished:
            _log_mistake(error, call.request_id)
        elif isinstance(error, StaleConnection) and call.pool is not None:
            # The worker closed an idle connection; the reservation stands.
            call.connection = None
            call.connecting = self._loop.create_task(self._connect(call, call.pool))
        elif isinstance(error, UpstreamFailed):
            self._worker_failed(call, error)
        elif isinstance(error, EdgeError):
            self._refuse(call, error)
        elif isinstance(error, RoutingError):
            self._refuse(call, Refused(error))
        else:
            _log_mistake(error, call.request_id)
            self._refuse(call, Internal("The router failed to handle this request."))

    def client_left(self, call: Call) -> None:
        if call.connecting is not None:
            call.connecting.cancel()
        relay = call.relay
        if isinstance(relay, StreamRelay | NamedEventRelay) and relay.ended and not relay.failed:
            # It had its whole answer, and closed before the end of the framing came.
            self._let_go(call, call.outcome_of(relay))
            if self._exact_pools and self._exact is not None:
                self._exact.answered(call)
        else:
            self._let_go(call, CLIENT_LEFT)
        self._finish(call)

    def _worker_failed(self, call: Call, failure: UpstreamFailed) -> None:
        """Before the client's first byte one other worker is asked, within the budget (A3)."""
        assert call.decision is not None
        worker = call.decision.worker
        log.warning("worker_failed", worker=worker, kind=failure.kind, why=failure.reason, request_id=call.request_id)
        if failure.counts:
            self._table.worker_failed(worker, now=self._clock())
        if call.offer and not call.client.begun:
            self._without_pull(call, failure)
            return
        self._let_go(call, Outcome(ok=False, error=failure.kind, status=failure.status))
        if call.client.begun or call.retries + 1 >= ATTEMPTS_MAX or not self._retry_budget.take():
            self._give_up(call, failure)
            return
        call.tried |= {worker}
        call.retries += 1
        call.retried_after_ms = (monotonic() - call.received_at) * 1000
        try:
            self._ask_worker(call)
        except RoutingError:
            self._give_up(call, failure)
        except Exception as error:
            self.broken_off(call, error)

    def _let_go(self, call: Call, outcome: Outcome, *, reusable: bool = False) -> None:
        """The one place where a reservation is released and the worker's connection with it."""
        call.outcome = outcome
        if call.pull is not None:
            self._end_pull(call, outcome)
        connection, reservation = call.connection, call.reservation
        call.connection = call.reservation = call.connecting = None
        if connection is not None:
            call.client.attach(None)
            connection.release(reusable=reusable)
        if reservation is not None:
            call.released = reservation
            call.assessment = self._table.release(reservation, outcome, now=self._clock())

    # the end

    def _give_up(self, call: Call, failure: UpstreamFailed) -> None:
        """No worker gave a good answer: say so, inside the stream when it has begun."""
        call.assessment = None
        call.outcome = call.failed_with(failure)
        self._say(call, client_error(failure))
        self._finish(call)

    def _say(self, call: Call, error: EdgeError) -> None:
        """As an answer, or inside the stream when it has begun, in the words of the endpoint's protocol."""
        client = call.client
        endpoint = ENDPOINTS.get(call.head.path)
        speech = endpoint.speech if endpoint is not None else "openai"
        if not client.begun:
            client.answer_error(error, call.request_id, speech=speech)
            return
        client.keep_alive = False
        if call.api is not None and call.api.stream:
            events = call.relay.events if isinstance(call.relay, NamedEventRelay) else 0
            client.write(chunk(event_for(speech, error, number=events)) + LAST_CHUNK)

    def _refuse(self, call: Call, error: EdgeError) -> None:
        self._let_go(call, Outcome(ok=False, error=error.kind, status=error.status))
        self._say(call, error)
        self._finish(call)

    def withdraw(self, call: Call, refusal: RoutingError) -> None:
        """What let the call in was taken away while it ran: it ends in the words that a later one would be refused."""
        if call.finished:
            return
        if call.connecting is not None:
            call.connecting.cancel()
        self._refuse(call, Refused(refusal))

    def _finish(self, call: Call, *, recorded: bool = True) -> None:
        """Record, and let the client's connection go on."""
        call.finished = True
        self.inflight -= 1
        try:
            if recorded:
                self._recorder.record(call)
        except Exception as error:
            _log_mistake(error, call.request_id)
        # A relay may hold the call: without the circle both go at once, not with the next garbage collection.
        call.relay = None
        call.client.done()


def _template(header: bytes, grant: Grant) -> TemplateRef:
    """A template the namespace may name, else none: a wrong name changes no answer."""
    name = header.decode("latin-1")
    return TemplateRef(name) if name in grant.policy.templates else TemplateRef("")


def _log_mistake(error: Exception, request_id: str) -> None:
    """Type and place only (S19)."""
    log.error("request_failed_by_mistake", error=type(error).__name__, place=place_of(error), request_id=request_id)
