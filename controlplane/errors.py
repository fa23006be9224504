"""What a service may refuse, as one tree; the API and the dashboard turn it into answers.

ControlError
├── Invalid      422  the input breaks a rule; `errors` names the fields
├── Forbidden    403  the actor may not
├── NotFound     404  no such object, or not for this actor
├── Conflict     409  the object's state forbids it, or its id is taken
├── Stale        412  the caller saw an older revision
└── Unavailable  503  a store does not answer; retrying helps
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError


class FieldError(TypedDict):
    field: str
    """Name of the field, or "" when the rule spans several."""
    message: str


class ControlError(Exception):
    """`message` is fit for the caller: it holds no secret and no internals."""

    status = 500
    code = "internal"
    part = ""
    """Of a change that is several in one: which of them was refused."""

    def __init__(self, message: str, *, errors: Sequence[FieldError] = (), code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.errors = list(errors)
        self.code = code or self.code


class Invalid(ControlError):
    status = 422
    code = "invalid"

    @classmethod
    def field(cls, field: str, message: str) -> Invalid:
        return cls(message, errors=[FieldError(field=field, message=message)])

    @classmethod
    def from_validation(cls, error: ValidationError) -> Invalid:
        """Of Django's `full_clean`: one FieldError for each message."""
        by_field = error.message_dict if hasattr(error, "error_dict") else {NON_FIELD_ERRORS: error.messages}
        errors = [
            FieldError(field="" if name == NON_FIELD_ERRORS else name, message=message)
            for name, messages in by_field.items()
            for message in messages
        ]
        return cls(errors[0]["message"] if errors else "The input is not valid.", errors=errors)


class Forbidden(ControlError):
    status = 403
    code = "forbidden"


class NotFound(ControlError):
    status = 404
    code = "not_found"


class Conflict(ControlError):
    status = 409
    code = "conflict"


class Stale(ControlError):
    status = 412
    code = "stale_revision"

    def __init__(self, *, seen: int, current: int) -> None:
        super().__init__(
            f"It has been changed since: revision {current} is current, yours is {seen}. Load it again, then repeat."
        )
        self.current = current


class Unavailable(ControlError):
    status = 503
    code = "unavailable"

    def __init__(self, message: str, *, retry_after_s: int = 2) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
