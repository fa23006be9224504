"""What tenants and their namespaces used in a span of time: requests, hits, errors, TTFT."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from controlplane.telemetry.bucket_reading import dims_of, sums_by
from controlplane.telemetry.merge import REQUESTS, Values, merge_into
from controlplane.telemetry.models import RequestRollup, TenantTotal
from controlplane.telemetry.rollup_rows import quantile_of, segments_q
from controlplane.telemetry.tenant_totals import TENANT_RETENTION_S, TENANTS
from controlplane.telemetry.windows import RETENTION_S, Scope, aligned_pair, cover

_SUMS = TENANTS.sums
_FIELDS = (*_SUMS, "errors", "ttft_hit", "ttft_miss")


@dataclass(frozen=True, slots=True)
class Use:
    """Sums over the span."""

    requests: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    hit_prompt_tokens: int = 0
    slo_met: int = 0
    slo_known: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)
    ttft_hit_p95_ms: float | None = None
    ttft_miss_p95_ms: float | None = None

    @property
    def hit_share(self) -> float | None:
        """Of the prompt tokens of requests whose worker named its cached ones."""
        return self.hit_tokens / self.hit_prompt_tokens if self.hit_prompt_tokens else None

    @property
    def goodput_share(self) -> float | None:
        return self.slo_met / self.slo_known if self.slo_known else None

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that no worker named as cached: what a prefill budget counts."""
        return max(0, self.prompt_tokens - self.hit_tokens)

    @property
    def failed(self) -> int:
        """Requests that ended in an error, refused ones included; who hung up themselves is no failure."""
        return sum(count for kind, count in self.errors.items() if kind != "client_disconnect")

    @property
    def refused(self) -> int:
        """429: over the budget, or beyond what the objective allows."""
        return self.errors.get("rate_limited", 0)


NO_USE = Use()
"""Of whom no router reported anything."""


def use_by_tenant(scope: Scope, *, now: datetime, tenants: Collection[str] | None = None) -> dict[str, Use]:
    """Tenant → its sums, of tenants that had traffic; without errors and TTFT. Two queries, added up by the database:
    whole days from the tenants' totals, what is beside them from the rows of requests."""
    span, _ = aligned_pair(scope, now=now)
    segments = cover(span, now=now, kept={**RETENTION_S, **TENANT_RETENTION_S})
    found: dict[str, Values] = {}
    for rows_of, wide in ((TenantTotal, True), (RequestRollup, False)):
        parts = [part for part in segments if (part.width_s in TENANT_RETENTION_S) is wide]
        if not parts:
            continue
        rows: Any = rows_of._default_manager.filter(segments_q(parts)).exclude(tenant="")
        if tenants is not None:
            rows = rows.filter(tenant__in=tenants)
        for row in sums_by(rows, ("tenant",), TENANTS):
            merge_into(TENANTS, found.setdefault(row["tenant"], {}), row)
    return {tenant: Use(**sums) for tenant, sums in found.items()}


def use_by_namespace(scope: Scope, *, now: datetime) -> dict[str, Use]:
    """Namespace id → its sums with errors and TTFT, of those in scope that had traffic. One query."""
    span, _ = aligned_pair(scope, now=now)
    rows = RequestRollup.objects.filter(segments_q(cover(span, now=now)), **dims_of(scope)).exclude(namespace="")
    return {row["namespace"]: _use(row) for row in sums_by(rows, ("namespace",), REQUESTS, _FIELDS)}


def total_use(uses: Collection[Use]) -> Use:
    """Their sum; quantiles cannot be added and are left out."""
    errors: Counter[str] = Counter()
    for use in uses:
        errors.update(use.errors)
    return Use(**{name: sum(getattr(use, name) for use in uses) for name in _SUMS}, errors=dict(errors))


def _use(values: dict[str, Any]) -> Use:
    return Use(
        **{name: int(values.get(name, 0)) for name in _SUMS},
        errors=values.get("errors", {}),
        ttft_hit_p95_ms=quantile_of(values.get("ttft_hit", {}), 0.95),
        ttft_miss_p95_ms=quantile_of(values.get("ttft_miss", {}), 0.95),
    )
