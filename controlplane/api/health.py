"""Whether this web server lives (`/healthz`) and can do its work (`/readyz`)."""

from __future__ import annotations

import redis
from django.conf import settings
from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

VALKEY_TIMEOUT_S = 0.5


@never_cache
@require_safe
def healthz(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok", content_type="text/plain")


@never_cache
@require_safe
def readyz(request: HttpRequest) -> JsonResponse:
    """200 while the database answers. Without Valkey the server still works: routers poll, pages poll: "degraded"."""
    database, valkey = _database_answers(), _valkey_answers()
    status = "unavailable" if not database else "ready" if valkey else "degraded"
    body = {"status": status, "database": _word(database), "valkey": _word(valkey)}
    return JsonResponse(body, status=200 if database else 503, headers={} if database else {"Retry-After": "2"})


def _word(answers: bool) -> str:
    return "ok" if answers else "away"


def _database_answers() -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            return bool(cursor.fetchone() == (1,))
    except DatabaseError:
        return False


def _valkey_answers() -> bool:
    try:
        with redis.Redis.from_url(
            settings.REDIS_URL, socket_connect_timeout=VALKEY_TIMEOUT_S, socket_timeout=VALKEY_TIMEOUT_S
        ) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False
