"""ETag = revision, and If-Match on change: a lost update becomes 412, a careless one 428."""

from __future__ import annotations

import re

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request

from controlplane.api.problems import PreconditionRequired
from controlplane.errors import Invalid

_ETAG = re.compile(r'"(\d{1,10})"')

IF_MATCH_REQUIRED = OpenApiParameter(
    "If-Match", str, OpenApiParameter.HEADER, required=True, description='The ETag that you saw, `"3"`; or `*`.'
)
IF_MATCH_OPTIONAL = OpenApiParameter(
    "If-Match", str, OpenApiParameter.HEADER, required=False, description='The ETag that you saw, `"3"`.'
)


def etag_of(revision: int) -> str:
    return f'"{revision}"'


def required_revision(request: Request) -> int | None:
    """The revision of If-Match; None for `*` (whatever it is). Raises PreconditionRequired without the header."""
    if "If-Match" not in request.headers:
        raise PreconditionRequired('Send If-Match with the ETag of what you saw, or "*" to change it whatever it is.')
    return optional_revision(request)


def optional_revision(request: Request) -> int | None:
    """The revision of If-Match, None for `*` or no header. Raises Invalid for anything but one of our ETags."""
    text = request.headers.get("If-Match", "*").strip()
    if text == "*":
        return None
    found = _ETAG.fullmatch(text)
    if found is None:
        raise Invalid('If-Match must be one ETag as the API gave it, such as "3".', code="bad_if_match")
    return int(found[1])
