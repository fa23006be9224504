"""How a service saves a row: its revision compared, every rule checked, refusals in the words of `errors`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from django.core.exceptions import ValidationError
from django.db import IntegrityError, models, transaction

from controlplane.errors import Conflict, FieldError, Invalid, Stale

_TAKEN_CODES = frozenset({"unique", "unique_together"})


class Revisioned(Protocol):
    revision: int


def expect_revision(row: Revisioned, if_revision: int | None) -> None:
    """Compare-and-set: raises Stale unless the locked row is the one the caller saw. None = no expectation."""
    if if_revision is not None and if_revision != row.revision:
        raise Stale(seen=if_revision, current=row.revision)


def save_checked(row: models.Model) -> None:
    """`full_clean`, then save. Raises Invalid with the fields' errors, or Conflict when an id is taken."""
    _refuse_unstorable_text(row)
    try:
        row.full_clean()
        with transaction.atomic():
            row.save()
    except ValidationError as error:
        raise _refusal(error) from None
    except IntegrityError:
        raise Conflict("Another change came first, or the database refused it. Load it again, then repeat.") from None


def _refusal(error: ValidationError) -> Invalid | Conflict:
    invalid = Invalid.from_validation(error)
    details = [detail for group in error.error_dict.values() for detail in group]
    if all(detail.code in _TAKEN_CODES for detail in details):
        return Conflict(invalid.message, errors=invalid.errors, code="taken")
    return invalid


def _refuse_unstorable_text(row: models.Model) -> None:
    """NUL and lone surrogates pass Django's checks, and then the database driver fails."""
    errors = [
        FieldError(field=field.name, message="Control characters and broken Unicode are not allowed.")
        for field in row._meta.concrete_fields
        if isinstance(field, models.CharField | models.TextField | models.JSONField)
        and any(not _storable(text) for text in _texts(getattr(row, field.attname)))
    ]
    if errors:
        raise Invalid(errors[0]["message"], errors=errors)


def _storable(text: str) -> bool:
    return all(char >= " " or char in "\t\n\r" for char in text) and not any(
        "\ud800" <= char <= "\udfff" for char in text
    )


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
