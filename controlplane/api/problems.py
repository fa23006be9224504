"""Every error of the API as an RFC 9457 problem document. The one place that turns exceptions into answers."""

from __future__ import annotations

import logging
from typing import Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db import DatabaseError, IntegrityError, InterfaceError, OperationalError
from django.http import Http404, HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from rest_framework import exceptions, status
from rest_framework.response import Response

from controlplane.errors import Conflict, ControlError, FieldError, Unavailable

log = logging.getLogger(__name__)

PROBLEM_TYPE = "application/problem+json"
DATABASE_RETRY_AFTER_S = 2
TITLES = {
    400: "The request is not readable",
    401: "Sign in first",
    403: "You may not do this",
    404: "Not found",
    405: "The method does not fit this address",
    406: "This form of answer is not offered",
    409: "The object's state forbids it",
    412: "It has been changed since",
    413: "The body is too large",
    415: "The body must be JSON",
    422: "The input breaks a rule",
    428: "Name the revision that you change",
    429: "Too many requests",
    500: "Something failed here",
    503: "Not available right now",
}


class PreconditionRequired(ControlError):
    status = 428
    code = "precondition_required"


class BodyTooLarge(ControlError):
    status = 413
    code = "too_large"


def problem_response(error: Exception, context: dict[str, Any]) -> Response:
    """DRF's EXCEPTION_HANDLER. What is not foreseen is logged with its request id, and says no more than that."""
    request_id = str(getattr(context["view"], "request_id", ""))
    response = _response(_translated(error, request_id), request_id)
    response.exception = True
    return response


@csrf_exempt
def not_found(request: HttpRequest, *args: Any, **kwargs: Any) -> JsonResponse:
    """For addresses under /api/ that nothing answers."""
    document = _document(404, "not_found", "There is nothing at this address.", [], "")
    return JsonResponse(document, status=404, content_type=PROBLEM_TYPE)


def _translated(error: Exception, request_id: str) -> ControlError | exceptions.APIException:
    if isinstance(error, ControlError | exceptions.APIException):
        return error
    if isinstance(error, Http404):
        return exceptions.NotFound("There is nothing at this address.")
    if isinstance(error, PermissionDenied):
        return exceptions.PermissionDenied()
    if isinstance(error, RequestDataTooBig):
        return BodyTooLarge("The body is larger than this server accepts.")
    if isinstance(error, IntegrityError):
        log.warning("database refused a change (request %s): %s", request_id, type(error).__name__)
        return Conflict("Another change came first, or the database refused it. Load it again, then repeat.")
    if isinstance(error, OperationalError | InterfaceError):
        log.warning("database does not answer (request %s): %s", request_id, type(error).__name__)
        return Unavailable("The database does not answer.", retry_after_s=DATABASE_RETRY_AFTER_S)
    kind = "database refused" if isinstance(error, DatabaseError) else "unforeseen"
    log.error("%s error (request %s)", kind, request_id, exc_info=error)
    return ControlError("Something failed here. The log has the details under the request id.")


def _response(error: ControlError | exceptions.APIException, request_id: str) -> Response:
    if isinstance(error, ControlError):
        document = _document(error.status, error.code, error.message, error.errors, request_id)
        retry_after_s = getattr(error, "retry_after_s", None)
        headers = {"Retry-After": str(retry_after_s)} if retry_after_s else {}
        return Response(document, status=error.status, headers=headers, content_type=PROBLEM_TYPE)
    code = error.status_code
    errors = _field_errors(error.detail) if isinstance(error, exceptions.ValidationError) else []
    if errors:
        code = status.HTTP_422_UNPROCESSABLE_ENTITY
    detail = errors[0]["message"] if errors else str(error.detail)
    document = _document(code, str(getattr(error, "default_code", "error")), detail, errors, request_id)
    return Response(document, status=code, headers=_headers_of(error), content_type=PROBLEM_TYPE)


def _headers_of(error: exceptions.APIException) -> dict[str, str]:
    headers = {}
    if getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = str(error.auth_header)  # type: ignore[attr-defined]
    if getattr(error, "wait", None):
        headers["Retry-After"] = str(int(error.wait) + 1)  # type: ignore[attr-defined]
    return headers


def _document(status_code: int, code: str, detail: str, errors: list[FieldError], request_id: str) -> dict[str, object]:
    return {
        "type": "about:blank",
        "title": TITLES.get(status_code, "Error"),
        "status": status_code,
        "code": code,
        "detail": detail,
        "errors": errors,
        "request_id": request_id,
    }


def _field_errors(detail: Any, path: str = "") -> list[FieldError]:
    """DRF's nested details, flattened: `segments.2.kind`."""
    if isinstance(detail, dict):
        return [
            error
            for key, item in detail.items()
            for error in _field_errors(item, path if key == "non_field_errors" else f"{path}.{key}".lstrip("."))
        ]
    if isinstance(detail, list):
        return [
            error
            for index, item in enumerate(detail)
            for error in _field_errors(item, f"{path}.{index}" if isinstance(item, dict) and item else path)
        ]
    return [FieldError(field=path, message=str(detail))]
