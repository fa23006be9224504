"""What each tenant's requests came to on each day, as contributions to `TenantTotal`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from controlplane.telemetry.merge import Contribution, Shape
from controlplane.telemetry.models import TenantTotal
from controlplane.telemetry.rollups import Table
from controlplane.telemetry.windows import RETENTION_S, Retention

DAY_S = 86_400
TENANT_RETENTION_S: Retention = {DAY_S: max(RETENTION_S.values())}
"""As long as the hours that a day is the sum of."""
TENANTS = Shape(
    dims=("tenant",),
    sums=("requests", "prompt_tokens", "hit_tokens", "hit_prompt_tokens", "slo_met", "slo_known"),
)
TENANT_TABLE = Table(TenantTotal, TENANTS, 0x54494445_00000009, kept=TENANT_RETENTION_S)


def tenant_contributions(requests: Iterable[Contribution]) -> list[Contribution]:
    """Of contributions to `RequestRollup`, whose first dimension is the tenant."""
    return [replace(each, dims=each.dims[:1]) for each in requests if each.dims[0]]
