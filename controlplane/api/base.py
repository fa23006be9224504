"""What every view of the API has in common: strict bodies, request ids, paging, problem documents, its schema."""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from django.db.models import Model, QuerySet
from django.http import HttpResponseBase
from django_filters.rest_framework import DjangoFilterBackend
from drf_spectacular.openapi import AutoSchema
from rest_framework import serializers
from rest_framework.exceptions import ParseError
from rest_framework.generics import GenericAPIView
from rest_framework.parsers import JSONParser
from rest_framework.permissions import SAFE_METHODS
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import UNSEEN, WHOLE_FLEET, CallerMay, Needs, Place, access_of, require
from controlplane.api.authentication import OperatorSession, PersonalTokenBearer
from controlplane.api.carrying_out import PARAMETERS, carry_out
from controlplane.api.deprecation import Deprecation
from controlplane.api.paging import CURSOR_PARAMS, IdCursor
from controlplane.api.problems import PROBLEM_TYPE, BodyTooLarge, problem_response
from controlplane.api.revisions import etag_of
from controlplane.api.throttling import Rate, counted, refuse_above
from controlplane.errors import Invalid, NotFound
from controlplane.tenants.models import User
from controlplane.tenants.roles import Access, Capability

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
            if getattr(self.view, "deprecation", None):
                operation["deprecated"] = True
        return operation

    def get_override_parameters(self) -> list[Any]:
        """Every change can be tried and repeated."""
        view = self.view
        tried = isinstance(view, ApiView) and not (view.has_outside_effects or view.open_to_routers)
        return PARAMETERS if tried and self.method not in SAFE_METHODS else []


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
    authentication_classes = [PersonalTokenBearer, OperatorSession]
    permission_classes = [CallerMay]
    parser_classes = [BoundedJSON]
    renderer_classes = [AsciiJSON]
    filter_backends = [StrictFilters]
    pagination_class: type[IdCursor] | None = IdCursor
    schema = ApiSchema()
    lookup_field = "pk"
    newest_first = False
    request_id = ""
    needs = Needs()
    """What callers must hold; see `access`. Nobody may call a view that says nothing."""
    place: Place = WHOLE_FLEET
    """Where the addressed object belongs."""
    rows_of = ""
    """Of a list: lookup from a row to its tenant's slug; "" = the rows are the fleet's."""
    open_to_routers = False
    has_outside_effects = False
    """The handler acts outside the database before its change commits: no dry run, no Idempotency-Key."""
    change_params: frozenset[str] = frozenset()
    """Query parameters of changes, beside `dry_run`."""
    rate: Rate | None = None
    deprecation: Deprecation | None = None
    """Set by `deprecation.deprecated`."""

    def initialize_request(self, request: Any, *args: Any, **kwargs: Any) -> Request:
        # Never the client's: it goes to the audit log, where each id must be of one request.
        self.request_id = uuid.uuid4().hex
        if "CONTENT_LENGTH" not in request.META and "HTTP_TRANSFER_ENCODING" in request.META:
            # DRF takes a body without a length for none; reading stops at the parser's own limit.
            request.META["CONTENT_LENGTH"] = str(BODY_BYTES_MAX)
        return super().initialize_request(request, *args, **kwargs)

    def perform_authentication(self, request: Request) -> None:
        """Every call counts towards the caller's rate, guesses of credentials too."""
        try:
            super().perform_authentication(request)
        finally:
            self.rate = counted(request)
            refuse_above(self.rate)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        name = str(request.method).lower()
        handler = getattr(self, name, None)
        if request.method not in SAFE_METHODS and handler is not None and not self.open_to_routers:
            setattr(self, name, partial(carry_out, self, handler))

    def finalize_response(self, request: Request, response: HttpResponseBase, *args: Any, **kwargs: Any) -> Response:
        finished = super().finalize_response(request, cast(Response, response), *args, **kwargs)
        finished["x-request-id"] = self.request_id
        finished.setdefault("Cache-Control", "no-store")
        for told in (self.rate, self.deprecation):
            for name, value in (told.headers() if told else {}).items():
                finished[name] = value
        return finished

    def handle_exception(self, exc: Exception) -> Response:
        """To whom not everything is visible, what is absent and what is another's look the same (S12)."""
        if isinstance(exc, NotFound) and not self._sees_all():
            exc = NotFound(UNSEEN)
        return super().handle_exception(exc)

    def _sees_all(self) -> bool:
        read = self.needs.read
        return self.open_to_routers or not isinstance(read, Capability) or self.access.may(read)

    def get_exception_handler(self) -> Callable[..., Response]:
        return problem_response

    @property
    def user(self) -> User:
        """The caller. A personal token stands for its owner."""
        if not isinstance(self.request.user, User):
            raise TypeError("this view is for users")
        return self.request.user

    @property
    def actor(self) -> str:
        """The person, whichever way they came: two tokens of one are not two persons."""
        return f"user:{self.request.user.get_username()}"

    @property
    def access(self) -> Access:
        return access_of(self.request)

    def require_in(self, tenant: str, needed: Capability | None = None) -> None:
        """Of a tenant named in the body: raises NotFound or Forbidden unless the caller holds `needed` there.

        Without `needed`, what the view needs for this method. "" asks for it in the whole fleet.
        """
        capability = needed or self.needs.of(self.request.method)
        if not isinstance(capability, Capability):
            raise TypeError("the view names no capability to compare with")
        require(self.access, self.needs, capability, tenant)

    def visible(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """The rows of those tenants in which the caller may read, as the first filter."""
        if not self.rows_of or not isinstance(self.needs.read, Capability):
            return rows
        tenants = self.access.tenants(self.needs.read)
        return rows if tenants is None else rows.filter(**{f"{self.rows_of}__in": tenants})

    def listed(self, rows: QuerySet[Any]) -> Response:
        """One page of the visible, filtered rows."""
        page = self.paginate_queryset(self.filter_queryset(self.visible(rows)))
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
