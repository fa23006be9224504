"""How much a tenant's prompt templates were used: for lists and before one is retired."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Sum

from controlplane.telemetry.models import RequestRollup
from controlplane.telemetry.rollup_rows import segments_q
from controlplane.telemetry.windows import Scope, aligned_pair, cover

WINDOW = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Use:
    requests: int
    hit_share: float | None
    """Hit tokens ÷ prompt tokens where both are known, 0…1."""


def template_use(tenant: str, refs: Collection[str], *, now: datetime) -> dict[str, Use]:
    """`<slug>@<version>` → use in the last 24 hours; one without requests is left out. One query."""
    span, _ = aligned_pair(Scope(from_=now - WINDOW, to=now), now=now)
    rows = RequestRollup.objects.filter(segments_q(cover(span, now=now)), tenant=tenant, template__in=refs)
    sums = rows.order_by().values_list("template", Sum("requests"), Sum("hit_tokens"), Sum("hit_prompt_tokens"))
    return {ref: Use(requests, hit / known if known else None) for ref, requests, hit, known in sums if requests}
