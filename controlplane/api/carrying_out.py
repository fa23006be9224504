"""How a change is carried out: for real, once for each Idempotency-Key, or only to see (`?dry_run=true`).

In a dry run the handler does all that it does, inside a transaction that is rolled back: its answer says what would be,
and nothing stays: no row, no audit entry, no snapshot.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter
from rest_framework.exceptions import ParseError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.encoders import JSONEncoder

from controlplane.errors import Invalid
from controlplane.idempotency import services
from controlplane.idempotency.services import Answer, Claim
from controlplane.tenants.models import User

if TYPE_CHECKING:
    from controlplane.api.base import ApiView

Handler = Callable[..., Response]

DRY_RUN_HEADER = "Tidemark-Dry-Run"
REPLAYED_HEADER = "Idempotent-Replayed"
KEPT_HEADERS = ("ETag", "Location")
_KEY = re.compile(r"[!-~]{1,200}")

PARAMETERS = [
    OpenApiParameter(
        "Idempotency-Key", str, OpenApiParameter.HEADER, required=False,
        description="1–200 visible ASCII characters. A repeat within 24 h gets the first answer and changes nothing.",
    ),
    OpenApiParameter(
        "dry_run", bool, OpenApiParameter.QUERY, required=False,
        description="true: answer as if it were done, and do nothing.",
    ),
]  # fmt: skip


def carry_out(view: ApiView, handler: Handler, request: Request, *args: Any, **kwargs: Any) -> Response:
    """The handler's answer. Raises what it raises, Invalid, or InFlight."""
    dry_run = _dry_run(view, request)
    if dry_run:
        return _tried(handler, request, *args, **kwargs)
    key = request.headers.get("Idempotency-Key")
    if key is None or view.has_outside_effects or not isinstance(request.user, User):
        return handler(request, *args, **kwargs)
    if not _KEY.fullmatch(key):
        raise Invalid("An Idempotency-Key has 1–200 visible ASCII characters.", code="bad_idempotency_key")
    caller = f"user:{request.user.pk}"
    held = services.claim(caller=caller, key=key, request_hash=_request_hash(request), now=timezone.now())
    return _replayed(held) if isinstance(held, Answer) else _once(held, handler, request, *args, **kwargs)


def _once(held: Claim, handler: Handler, request: Request, *args: Any, **kwargs: Any) -> Response:
    try:
        with transaction.atomic():
            response = handler(request, *args, **kwargs)
            services.finish(held, _kept(response))
    except BaseException:
        services.release(held)
        raise
    return response


def _kept(response: Response) -> Answer:
    body = "" if response.data is None else json.dumps(response.data, cls=JSONEncoder)
    headers = {name: response[name] for name in KEPT_HEADERS if name in response}
    return Answer(status=response.status_code, body=body, headers=headers)


def _replayed(answer: Answer) -> Response:
    data = json.loads(answer.body) if answer.body else None
    return Response(data, status=answer.status, headers=answer.headers | {REPLAYED_HEADER: "true"})


def _tried(handler: Handler, request: Request, *args: Any, **kwargs: Any) -> Response:
    with transaction.atomic():
        response = handler(request, *args, **kwargs)
        transaction.set_rollback(True)
    response[DRY_RUN_HEADER] = "true"
    return response


def _dry_run(view: ApiView, request: Request) -> bool:
    """Whether it is asked for. A mistyped parameter is refused: the change would be made in earnest."""
    unknown = sorted(set(request.query_params) - {"dry_run", *view.change_params})
    if unknown:
        raise Invalid.field(unknown[0], f"There is no parameter {unknown[0]!r} here.")
    wanted = request.query_params.get("dry_run", "false")
    if wanted not in ("true", "false"):
        raise Invalid.field("dry_run", "dry_run is true or false.")
    if wanted == "true" and view.has_outside_effects:
        raise Invalid.field("dry_run", "This call acts outside the database: it cannot be tried without doing it.")
    return wanted == "true"


def _request_hash(request: Request) -> str:
    try:
        body = json.dumps(request.data, sort_keys=True)
    except RecursionError:
        raise ParseError("The body is nested too deeply.") from None
    conditions = [request.headers.get(name, "") for name in ("If-Match", "If-None-Match")]
    parts = json.dumps([request.method, request.get_full_path(), conditions, body])
    return hashlib.sha256(parts.encode()).hexdigest()
