"""What a client is told when something goes wrong: one tree, OpenAI's error shape.

EdgeError                 status, kind (outcome in telemetry), OpenAI type and code
├── BadRequest       400  the request itself is wrong; `param` names the field
│   └── BadHttp      400  wrong below JSON: framing, headers; the connection is closed after the answer
├── NotFound         404  no such path
├── MethodNotAllowed 405
├── TooLarge         413
├── UnsupportedMedia 415
├── HeadTooLarge     431
├── Refused               what `router.core` refuses: 401, 403, 404, 503
├── NotOffered       501  the model's workers lack the endpoint
├── UpstreamError    502  a worker answered with something unusable, or died
├── UpstreamTimeout  504
└── Internal         500  our own mistake
"""

from __future__ import annotations

import msgspec

from router.core.model import RoutingError

REASONS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found",
    405: "Method Not Allowed", 408: "Request Timeout", 413: "Content Too Large", 415: "Unsupported Media Type",
    422: "Unprocessable Content", 429: "Too Many Requests", 431: "Request Header Fields Too Large",
    500: "Internal Server Error", 501: "Not Implemented", 502: "Bad Gateway", 503: "Service Unavailable",
    504: "Gateway Timeout", 505: "HTTP Version Not Supported",
}  # fmt: skip


class EdgeError(Exception):
    status = 500
    kind = "internal"
    type = "server_error"
    code: str | None = None
    closes = False
    """True when the connection cannot be used for another request."""
    retry_after_s: int | None = None
    allow: str | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class BadRequest(EdgeError):
    status = 400
    kind = "bad_request"
    type = "invalid_request_error"


class BadHttp(BadRequest):
    code = "malformed_http"
    closes = True


class HttpVersion(BadHttp):
    status = 505


class RequestTimeout(BadHttp):
    status = 408
    code = "request_timeout"


class NotFound(EdgeError):
    status = 404
    kind = "not_found"
    type = "invalid_request_error"
    code = "unknown_url"


class MethodNotAllowed(EdgeError):
    status = 405
    kind = "bad_request"
    type = "invalid_request_error"
    code = "method_not_allowed"

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class TooLarge(EdgeError):
    status = 413
    kind = "too_large"
    type = "invalid_request_error"
    code = "request_too_large"
    closes = True


class UnsupportedMedia(EdgeError):
    status = 415
    kind = "bad_request"
    type = "invalid_request_error"
    code = "unsupported_media_type"


class HeadTooLarge(BadHttp):
    status = 431
    kind = "too_large"
    code = "headers_too_large"


class Refused(EdgeError):
    """A refusal of the routing core in the client's words; equal for foreign, absent and revoked names (S12)."""

    _CODES = {401: "invalid_api_key", 403: "forbidden", 404: "model_not_found", 503: "no_worker_available"}

    def __init__(self, error: RoutingError) -> None:
        super().__init__(error.message, code=self._CODES.get(error.status))
        self.status = error.status
        self.kind = error.kind
        self.type = "server_error" if error.status >= 500 else "invalid_request_error"
        self.param = "model" if error.status == 404 else None
        retry_after_s = getattr(error, "retry_after_s", None)
        if retry_after_s is not None:
            self.retry_after_s = max(1, int(retry_after_s))


class Overloaded(EdgeError):
    status = 503
    kind = "no_worker"
    code = "no_worker_available"
    retry_after_s = 1


class NotOffered(EdgeError):
    status = 501
    kind = "bad_request"
    type = "invalid_request_error"
    code = "endpoint_not_offered"


class UpstreamError(EdgeError):
    status = 502
    kind = "upstream_error"
    code = "upstream_error"


class UpstreamTimeout(EdgeError):
    status = 504
    kind = "upstream_timeout"
    code = "upstream_timeout"


class Internal(EdgeError):
    code = "internal_error"


def error_body(error: EdgeError) -> bytes:
    """`{"error": {"message", "type", "param", "code"}}`."""
    return msgspec.json.encode(
        {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}
    )


def status_line(status: int) -> bytes:
    return b"HTTP/1.1 %d %s\r\n" % (status, REASONS.get(status, "Unknown").encode())
