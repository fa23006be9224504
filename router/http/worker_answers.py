"""A worker's answer judged by its head: whether it may reach a client, and how it is relayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from router.http.answer_head import AnswerHead
from router.http.errors import EdgeError, NotOffered, Overloaded, UpstreamError, UpstreamTimeout
from router.http.named_events import ANTHROPIC, RESPONSES, NamedEventRelay
from router.http.relay import ChunkedRelay, LengthRelay, Relay, StreamRelay
from router.http.upstream import UpstreamFailed

RELAYED_ERRORS: Final = frozenset((400, 413, 422))
"""Worker statuses that are about the request: the client gets the worker's own words."""


def check_answer(head: AnswerHead, stream: bool, *, core_endpoint: bool) -> None:
    """Raises UpstreamFailed for every answer that must not reach a client, NotOffered where the worker lacks the
    endpoint, as a model without a pooler lacks embeddings."""
    status = head.status
    if status == 200:
        if head.content_type.startswith(b"text/event-stream" if stream else b"application/json"):
            return
        raise UpstreamFailed("upstream_error", "the worker answered with another kind of content")
    if status in RELAYED_ERRORS and head.content_type.startswith(b"application/json"):
        return
    if status in (404, 501) and not core_endpoint:
        raise NotOffered("The servers of this model do not offer this endpoint.")
    overloaded = status in (429, 503)
    raise UpstreamFailed(
        "upstream_error",
        f"the worker answered with status {status}",
        status=503 if overloaded else 502,
        # Its word about the request or its own set-up is no sign of ill health.
        counts=status >= 500 or status == 429,
    )


def stream_relay(
    speech: str, head: AnswerHead, *, strip_usage: bool, on_output: Callable[[], None] | None
) -> StreamRelay | NamedEventRelay:
    """Of a stream in its endpoint's protocol. `on_output`: to be called at its first output, where the first byte says
    nothing of it."""
    if speech == "responses":
        return NamedEventRelay(RESPONSES, chunked=head.chunked, on_output=on_output)
    if speech == "anthropic":
        return NamedEventRelay(ANTHROPIC, chunked=head.chunked)
    return StreamRelay(chunked=head.chunked, strip_usage=strip_usage)


def whole_relay(head: AnswerHead) -> Relay:
    if head.content_length is not None:
        return LengthRelay(head.content_length)
    return ChunkedRelay(chunked=head.chunked)


def client_error(failure: UpstreamFailed) -> EdgeError:
    """Uniform words: neither which worker nor why (S6)."""
    if failure.kind == "upstream_timeout":
        return UpstreamTimeout("The model server did not answer in time.")
    if failure.status == 503:
        return Overloaded("The model servers are overloaded. Try again shortly.")
    if failure.kind == "upstream_died":
        return UpstreamError("The model server stopped before the answer was complete.", code="upstream_died")
    return UpstreamError("The model server failed to answer.")
