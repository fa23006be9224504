"""One request from its head to its end: what is known of it, and who is called back. `service` takes the steps.

| state      | `reservation` | `connecting` | `connection` | left by |
| ---------- | ------------- | ------------ | ------------ | --- |
| preparing  |               |              |              | `_ask_worker`, or a refusal |
| reading    |               | set          |              | the prompt being read, the client leaving |
| connecting | held          | set          |              | the connection, its failure, the client leaving |
| asked      | held          |              | set          | `answer_begun`, `answer_failed`, the client leaving |
| relaying   | held          |              | set          | `answer_complete`, `answer_failed`, the client leaving |
| pulling    | held          |              |              | `pull` ending, the client leaving |
| finished   |               |              |              | – |

A call needs no task, no future and no timer: deadlines belong to the connections and are looked after by a sweep.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final

from router.contract.ids import TemplateRef, WorkerId
from router.core.exact.chains import ExactPrefix
from router.core.model import Assessment, Decision, Grant, Outcome, Reservation
from router.http import openai
from router.http.decision_header import decision_line
from router.http.head import Head
from router.http.protocol import ClientConnection
from router.http.pull_bodies import Offer
from router.http.pulling import Pull
from router.http.relay import Relay
from router.http.upstream import StaleConnection, UpstreamFailed, WorkerConnection, WorkerPool

NO_TEMPLATE: Final = TemplateRef("")
NONE_TRIED: Final[frozenset[WorkerId]] = frozenset()
NOT_FINISHED: Final = Outcome(ok=False, error="internal", status=500)


class Steps:
    """What is called back for a call. A class and no Protocol: compiled, its calls are looked up in a table."""

    def answer_begun(self, call: Call) -> None:
        """Head and first body byte are here."""
        raise NotImplementedError

    def answer_complete(self, call: Call) -> None:
        raise NotImplementedError

    def broken_off(self, call: Call, error: Exception) -> None:
        """Whatever went wrong, from any state."""
        raise NotImplementedError

    def client_left(self, call: Call) -> None:
        raise NotImplementedError

    def pull_answered(self, call: Call, offer: Offer, *, reusable: bool) -> None:
        raise NotImplementedError

    def pull_failed(self, call: Call, failure: UpstreamFailed) -> None:
        raise NotImplementedError


class Call:
    """With its outcome it is all that telemetry wants to know.

    The defaults are the class's own: a usual request sets few of them.
    """

    api: openai.ApiRequest | None = None
    grant: Grant | None = None
    template_ignored: bool = False
    sampled: bool = False
    body: bytes = b""
    retries: int = 0
    prefix: ExactPrefix | None = None
    """The prompt as the workers of an exact pool hash it."""
    reading_us: float = 0.0
    """What that took on the event loop."""
    auth_us: float | None = None
    fingerprint_us: float | None = None
    """Those two: of sampled requests alone."""
    decision_us: float | None = None
    connect_ms: float = 0.0
    retried_after_ms: float = 0.0
    decision: Decision | None = None
    assessment: Assessment | None = None

    reservation: Reservation | None = None
    released: Reservation | None = None
    """The last one: what telemetry tells of the queue."""
    pool: WorkerPool | None = None
    """The reserved worker's connections."""
    connecting: asyncio.Task[None] | None = None
    connection: WorkerConnection | None = None
    pull: Pull | None = None
    """The source being asked."""
    offer: bytes = b""
    """What the source answered, for the worker that pulls."""
    pull_result: str = ""
    """`ok`, `fell_back`, or "" where nothing was to be pulled."""
    pulled_from: str = ""
    pull_began_at: float = 0.0
    pull_ms: float = 0.0
    output_at: float = 0.0
    """When a stream's answer began, in monotonic seconds; 0 before."""
    finished: bool = False

    def __init__(self, service: Steps, head: Head, client: ClientConnection, request_id: str) -> None:
        self.service = service
        self.head = head
        self.client = client
        self.request_id = request_id
        self.template: TemplateRef = NO_TEMPLATE
        self.outcome: Outcome = NOT_FINISHED
        self.tried: frozenset[WorkerId] = NONE_TRIED
        self.relay: Relay | None = None
        self.received_at = monotonic()
        """When the whole request was here, in monotonic seconds."""

    # what came of it

    def outcome_of(self, relay: Relay) -> Outcome:
        """Of the worker's answer, as far as it was relayed."""
        connection, api = self.connection, self.api
        assert connection is not None and connection.head is not None and api is not None
        status, usage = connection.head.status, relay.usage
        ttft_ms = None
        if self.output_at:
            ttft_ms = (self.output_at - self.received_at) * 1000
        return Outcome(
            ok=status == 200 and not relay.failed,
            error=relay.failed or ("" if status == 200 else "bad_request"),
            status=status,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            ttft_ms=ttft_ms,
            duration_ms=(monotonic() - self.received_at) * 1000,
        )

    def failed_with(self, failure: UpstreamFailed) -> Outcome:
        """No worker gave a good answer."""
        return Outcome(
            ok=False,
            error=failure.kind,
            status=failure.status,
            duration_ms=(monotonic() - self.received_at) * 1000,
        )

    def decision_line(self) -> bytes:
        """How it was routed, for keys that may know it (S6); empty for others."""
        if self.grant is None or not self.grant.explains or self.decision is None:
            return b""
        return decision_line(self.decision, retries=self.retries)

    # the worker's connection and the client's call back; whatever goes wrong then ends the request in one way

    def answer_begun(self) -> None:
        try:
            self.service.answer_begun(self)
        except Exception as error:
            self.service.broken_off(self, error)

    def answer_complete(self) -> None:
        try:
            self.service.answer_complete(self)
        except Exception as error:
            self.service.broken_off(self, error)

    def answer_failed(self, error: UpstreamFailed | StaleConnection) -> None:
        self.service.broken_off(self, error)

    def client_left(self) -> None:
        self.service.client_left(self)

    def pull_answered(self, offer: Offer, *, reusable: bool) -> None:
        try:
            self.service.pull_answered(self, offer, reusable=reusable)
        except Exception as error:
            self.service.broken_off(self, error)

    def pull_failed(self, error: UpstreamFailed) -> None:
        try:
            self.service.pull_failed(self, error)
        except Exception as mistake:
            self.service.broken_off(self, mistake)
