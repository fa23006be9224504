"""The head of a request to a worker, framed by us alone: of the client only a well-formed traceparent goes on."""

from __future__ import annotations

import re
from typing import Final

from router.http.upstream import WorkerPool

_TRACEPARENT: Final = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def request_head(
    pool: WorkerPool,
    path: bytes,
    *,
    authorization: bytes,
    request_id: str,
    traceparent: bytes | None,
    extra: bytes,
    body_bytes: int,
) -> bytes:
    """`authorization` and `extra` hold whole header lines with their line ends; the first is the same for every request
    of a router."""
    begin = pool.request_heads.get(path)
    if begin is None:
        begin = pool.request_heads[path] = (
            b"POST %b HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\n%bx-request-id: "
        ) % (path, pool.host_header, authorization)
    if traceparent is not None and _TRACEPARENT.fullmatch(traceparent):
        extra = b"traceparent: %b\r\n%b" % (traceparent, extra)
    return b"%b%b\r\n%bcontent-length: %d\r\n\r\n" % (begin, request_id.encode(), extra, body_bytes)
