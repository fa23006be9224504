"""What every view of the API has in common: strict bodies, request ids, paging, problem documents, its schema."""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable, Mapping
from typing import Any, cast

from django.db.models import Model, QuerySet
from django.http import HttpResponseBase
from django_filters.rest_framework import DjangoFilterBackend
from drf_spectacular.openapi import AutoSchema
from rest_framework import serializers
from rest_framework.exceptions import ParseError
from rest_framework.generics import GenericAPIView
from rest_framework.parsers import JSONParser
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import OperatorMayChange, OperatorSession
from controlplane.api.paging import CURSOR_PARAMS, IdCursor
from controlplane.api.problems import PROBLEM_TYPE, BodyTooLarge, problem_response
from controlplane.api.revisions import etag_of
from controlplane.errors import Invalid

BODY_BYTES_MAX = 1024 * 1024
"""Far above any change: the largest is a namespace with 200 model names."""


class BoundedJSON(JSONParser):
    def parse(self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None) -> Any:
        """Raises BodyTooLarge, or ParseError also where Python's own parser would overflow its stack."""
        data = stream.read(BODY_BYTES_MAX + 1)
        if len(data) > BODY_BYTES_MAX:
            raise BodyTooLarge(f"A body has at most {BODY_BYTES_MAX} bytes.")
        try:
            return self._parsed(data)
        except RecursionError:
            raise ParseError("The body is nested too deeply.") from None

    def _parsed(self, data: bytes) -> Any:
        return super().parse(io.BytesIO(data), "application/json", {"encoding": "utf-8"})


class AsciiJSON(JSONRenderer):
    """Escapes beyond ASCII, so that a lone surrogate in an error message cannot break the answer."""

    ensure_ascii = True


class Text(serializers.CharField):
    """DRF's takes numbers for text: 1e400 would be stored as "inf"."""

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            raise serializers.ValidationError("This must be a text.")
        return super().to_internal_value(data)


class StrictSerializer(serializers.Serializer[Any]):
    """Refuses fields that it does not know: a mistyped name must not be dropped in silence."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            unknown = {name: ["There is no such field."] for name in data if name not in self.fields}
            if unknown:
                raise serializers.ValidationError(unknown)
        return super().to_internal_value(data)


class FieldErrorSerializer(serializers.Serializer[Any]):
    field = serializers.CharField(help_text="Dotted name of the field; empty when the rule spans several.")
    message = serializers.CharField()


class ProblemSerializer(serializers.Serializer[Any]):
    """RFC 9457."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    code = serializers.CharField()
    detail = serializers.CharField()
    errors = FieldErrorSerializer(many=True)  # type: ignore[assignment]
    request_id = serializers.CharField()


class ApiSchema(AutoSchema):
    """Adds the problem document to every operation, and its address to its id."""

    def get_operation(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        operation = super().get_operation(*args, **kwargs)
        if operation is not None:
            component = self.resolve_serializer(ProblemSerializer, "response")
            content = {PROBLEM_TYPE: {"schema": component.ref}}
            operation["responses"]["default"] = {"description": "A problem document.", "content": content}
        return operation


class StrictFilters(DjangoFilterBackend):
    """Refuses query parameters that are no filter: a mistyped filter would show everything."""

    def filter_queryset(self, request: Request, queryset: Any, view: Any) -> Any:
        filterset = getattr(view, "filterset_class", None)
        known = set(filterset.base_filters if filterset else ()) | set(CURSOR_PARAMS)
        unknown = sorted(set(request.query_params) - known)
        if unknown:
            raise Invalid.field(
                unknown[0], f"There is no filter {unknown[0]!r}; there are: {', '.join(sorted(known))}."
            )
        return super().filter_queryset(request, queryset, view)


class ApiView(GenericAPIView[Any]):
    authentication_classes = [OperatorSession]
    permission_classes = [OperatorMayChange]
    parser_classes = [BoundedJSON]
    renderer_classes = [AsciiJSON]
    filter_backends = [StrictFilters]
    pagination_class = IdCursor
    schema = ApiSchema()
    lookup_field = "pk"
    newest_first = False
    request_id = ""

    def initialize_request(self, request: Any, *args: Any, **kwargs: Any) -> Request:
        # Never the client's: it goes to the audit log, where each id must be of one request.
        self.request_id = uuid.uuid4().hex
        if "CONTENT_LENGTH" not in request.META and "HTTP_TRANSFER_ENCODING" in request.META:
            # DRF takes a body without a length for none; reading stops at the parser's own limit.
            request.META["CONTENT_LENGTH"] = str(BODY_BYTES_MAX)
        return super().initialize_request(request, *args, **kwargs)

    def finalize_response(self, request: Request, response: HttpResponseBase, *args: Any, **kwargs: Any) -> Response:
        finished = super().finalize_response(request, cast(Response, response), *args, **kwargs)
        finished["x-request-id"] = self.request_id
        finished.setdefault("Cache-Control", "no-store")
        return finished

    def get_exception_handler(self) -> Callable[..., Response]:
        return problem_response

    @property
    def actor(self) -> str:
        return f"user:{self.request.user.get_username()}"

    def listed(self, rows: QuerySet[Any]) -> Response:
        """One page of the filtered rows."""
        page = self.paginate_queryset(self.filter_queryset(rows))
        return self.get_paginated_response(self.get_serializer(page, many=True).data)

    def body(self, serializer: type[serializers.Serializer[Any]], *, partial: bool = False) -> dict[str, Any]:
        """The validated body. Raises what becomes 400 (not JSON) or 422 (with the fields' errors)."""
        parsed = serializer(data=self.request.data, partial=partial)
        parsed.is_valid(raise_exception=True)
        return dict(parsed.validated_data)


def shown(serializer: type[serializers.Serializer[Any]], row: Model, *, status: int = 200) -> Response:
    """One object, with its revision as ETag where it has one."""
    revision = getattr(row, "revision", None)
    headers = {} if revision is None else {"ETag": etag_of(revision)}
    return Response(serializer(row).data, status=status, headers=headers)
