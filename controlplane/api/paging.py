"""Pages by opaque cursor: the last id of a page, so that rows added or removed meanwhile shift nothing."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any

from django.db.models import QuerySet
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.errors import Invalid

LIMIT_DEFAULT = 50
LIMIT_MAX = 200
CURSOR_PARAMS = ("cursor", "limit")
_ID_MAX = 2**63 - 1


class IdCursor(BasePagination):
    """Ordered by id, rising, or falling where the view says `newest_first`. Body: {items, next_cursor}."""

    next_cursor: str | None = None

    def paginate_queryset(
        self, queryset: QuerySet[Any] | Sequence[Any], request: Request, view: APIView | None = None
    ) -> list[Any]:
        if not isinstance(queryset, QuerySet):
            raise TypeError("pages are cut from a QuerySet, by id")
        falls = getattr(view, "newest_first", False)
        limit = _limit(request.query_params.get("limit", ""))
        after = _after(request.query_params.get("cursor", ""))
        rows = queryset.order_by("-id" if falls else "id")
        if after is not None:
            rows = rows.filter(id__lt=after) if falls else rows.filter(id__gt=after)
        page = list(rows[: limit + 1])
        self.next_cursor = _cursor(page[limit - 1].pk) if len(page) > limit else None
        return page[:limit]

    def get_paginated_response(self, data: Any) -> Response:
        return Response({"items": data, "next_cursor": self.next_cursor})

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        cursor = {"type": ["string", "null"], "description": "Pass it as `cursor` for the next page; null = the end."}
        return {
            "type": "object",
            "required": ["items", "next_cursor"],
            "properties": {"items": schema, "next_cursor": cursor},
        }

    def get_schema_operation_parameters(self, view: APIView) -> list[dict[str, Any]]:
        limit = {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT}
        return [
            {"name": "cursor", "in": "query", "required": False, "schema": {"type": "string"}},
            {"name": "limit", "in": "query", "required": False, "schema": limit},
        ]


def _limit(text: str) -> int:
    if not text:
        return LIMIT_DEFAULT
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= LIMIT_MAX):
        raise Invalid.field("limit", f"limit is a whole number from 1 to {LIMIT_MAX}.")
    return int(text)


def _cursor(row_id: int) -> str:
    return base64.urlsafe_b64encode(f"id:{row_id}".encode()).rstrip(b"=").decode()


def _after(text: str) -> int | None:
    if not text:
        return None
    try:
        kind, _, number = base64.urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4)).decode().partition(":")
        after = int(number) if kind == "id" and number.isdigit() and len(number) <= 19 else -1
    except (binascii.Error, ValueError):
        after = -1
    if not 0 <= after <= _ID_MAX:
        raise Invalid.field("cursor", "This cursor is not one that the API gave.")
    return after
