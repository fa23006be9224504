"""Sampled decisions: found by request id, listed by what they were."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from django.db.models import F, Q, QuerySet

from controlplane.telemetry.models import DecisionRecord
from controlplane.telemetry.windows import Scope

OFF_TOKENS_MAX = 10_000_000
REQUEST_ID_MAX = 64
_OTHERS_LOAD = re.compile(r",? [\d,]+ requests under way")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a list is narrowed to besides its scope; "" and None = anything."""

    outcome: str = ""
    reason: str = ""
    ttft_min_ms: float | None = None
    off_tokens_min: int | None = None
    """Predicted and delivered hit tokens differ by at least so many; unknown ones do not."""


ANYTHING = Wanted()


def decisions(
    scope: Scope, wanted: Wanted = ANYTHING, *, tenants: Collection[str] | None = None
) -> QuerySet[DecisionRecord]:
    """Newest first, without their detail. `tenants`: of these alone; None = of all."""
    found = DecisionRecord.objects.defer("detail").order_by("-at", "-pk")
    if tenants is not None:
        found = found.filter(tenant__in=tenants)
    found = found.filter(at__gte=scope.from_, at__lt=scope.to)
    for name in ("tenant", "namespace", "pool", "worker", "model"):
        if value := getattr(scope, name):
            found = found.filter(**{name: value})
    for name in ("outcome", "reason"):
        if value := getattr(wanted, name):
            found = found.filter(**{name: value[:30]})
    if wanted.ttft_min_ms is not None:
        found = found.filter(ttft_ms__gte=wanted.ttft_min_ms)
    if wanted.off_tokens_min is not None:
        found = found.filter(off_by(wanted.off_tokens_min))
    return found


def off_by(tokens: int) -> Q:
    """Predicted and delivered hit tokens differ by at least so many.

    Without the database's own absolute value: unsigned columns must not go below zero on the way.
    """
    tokens = min(tokens, OFF_TOKENS_MAX)
    fewer = Q(cached_tokens__lte=F("predicted_hit_tokens") - tokens)
    return fewer | Q(cached_tokens__gte=F("predicted_hit_tokens") + tokens)


def find_decision(request_id: str, *, tenants: Collection[str] | None = None) -> DecisionRecord | None:
    """None when it is not kept, and as well when it is another tenant's."""
    found = DecisionRecord.objects.filter(request_id=request_id[:REQUEST_ID_MAX])
    return (found if tenants is None else found.filter(tenant__in=tenants)).first()


def without_others_load(sentence: str) -> str:
    """A decision's sentence for those who do not see the fleet: not how busy a worker is with others' requests."""
    return _OTHERS_LOAD.sub("", sentence)
