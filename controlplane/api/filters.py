"""Filters that several lists share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import django_filters
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django_filters.fields import IsoDateTimeField


class MomentField(IsoDateTimeField):
    def clean(self, value: object) -> datetime | None:
        """The moment in UTC. Raises ValidationError also for one that has none: in the first or last hours of dates."""
        moment: datetime | None = super().clean(value)
        try:
            return moment and moment.astimezone(UTC)
        except OverflowError:
            raise ValidationError("This date is too far away.") from None


class MomentFilter(django_filters.IsoDateTimeFilter):
    """A moment in any zone, in UTC to the database: PostgreSQL knows no offset beyond ±15:59:59."""

    field_class = MomentField


class OfWorker(django_filters.FilterSet):
    """For rows that belong to a worker."""

    worker = django_filters.CharFilter(method="of_worker", label="`<pool>/<worker>`")

    def of_worker(self, rows: QuerySet[Any], name: str, value: str) -> QuerySet[Any]:
        pool, _, slug = value.partition("/")
        return rows.filter(worker__pool__slug=pool, worker__slug=slug)
