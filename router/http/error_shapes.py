"""Errors in the words of each endpoint's protocol: whole bodies, and events inside a stream that has begun."""

from __future__ import annotations

from typing import Final

import msgspec

from router.http.errors import EdgeError, error_body

_ANTHROPIC_TYPES: Final = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error",
}  # fmt: skip
"""Anthropic's names by status; others below 500 are `invalid_request_error`, above `api_error`."""


def body_for(speech: str, error: EdgeError) -> bytes:
    """`speech` is `Endpoint.speech`; all but Anthropic's use OpenAI's shape."""
    if speech != "anthropic":
        return error_body(error)
    return msgspec.json.encode(_anthropic(error))


def event_for(speech: str, error: EdgeError, *, number: int = 0) -> bytes:
    """The event that tells a client its stream broke off (A4); no end mark follows. `number` counts events so far."""
    if speech == "anthropic":
        return b"event: error\ndata: %b\n\n" % msgspec.json.encode(_anthropic(error))
    if speech == "responses":
        value = {
            "type": "error",
            "code": error.code,
            "message": error.message,
            "param": None,
            "sequence_number": number,
        }
        return b"event: error\ndata: %b\n\n" % msgspec.json.encode(value)
    return b"data: %b\n\n" % error_body(error)


def _anthropic(error: EdgeError) -> dict[str, object]:
    kind = _ANTHROPIC_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}
