"""What routers tell of reuse and of cohorts, as contributions to `SliceRollup`: each request once in each slice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from controlplane.telemetry.merge import Contribution, Key, Values
from controlplane.telemetry.models import SliceRollup
from controlplane.telemetry.shipment_check import closed_losses
from controlplane.telemetry.windows import Scope
from router.contract.telemetry import RequestRow, Shipment

SLICE_FIELDS = (
    "repeated_tokens", "best_hit_tokens", "expected_hit_tokens", "unjudged_tokens", "routing_loss", "hit_size",
    "cohorts",
)  # fmt: skip
"""Fields of `RequestRow` that are kept in slices alone."""

_SUMS = (
    "repeated_tokens", "best_hit_tokens", "expected_hit_tokens", "unjudged_tokens", "hit_tokens", "saved_prefill_ms",
)  # fmt: skip
Slice = SliceRollup.Slice


def slice_contributions(shipments: Iterable[Shipment]) -> list[Contribution]:
    found = []
    for shipment in shipments:
        if shipment.router is not None:
            # An idle router's zero: so an idle bucket differs from a gap.
            found.append(Contribution(shipment.at, (Slice.ROUTER, shipment.source, "", "", "", ""), {"requests": 0}))
        for row in shipment.requests:
            if row.usage_known or row.cohorts:
                values = _values(row)
                found += [Contribution(shipment.at, dims, values) for dims in _dims(shipment.source, row)]
    return found


def _dims(router: str, row: RequestRow) -> Iterator[Key]:
    yield Slice.ROUTER, router, "", "", row.pool, row.model
    if row.worker:
        yield Slice.WORKER, row.worker, "", "", row.pool, row.model
    if row.namespace:
        yield Slice.NAMESPACE, row.namespace, row.tenant, row.template, row.pool, row.model


def _values(row: RequestRow) -> Values:
    values: Values = {name: value for name in _SUMS if (value := getattr(row, name))}
    values["requests"], values["prompt_tokens"] = row.hit_known, row.hit_prompt_tokens
    values["unknown_prompt_tokens"] = max(row.prompt_tokens - row.hit_prompt_tokens, 0)
    if row.routing_loss:
        values["routing_loss"] = closed_losses(row)
    for name in ("hit_size", "cohorts"):
        counts: Mapping[int, int] = getattr(row, name)
        if counts:
            values[name] = {str(key): count for key, count in counts.items()}
    return values


def slice_of(scope: Scope) -> dict[str, Any]:
    """Conditions on the rows that answer for the scope.

    The worker counts only where neither tenant nor namespace is named: see `SliceRollup`.
    """
    named: dict[str, Any] = {name: value for name in ("pool", "model") if (value := getattr(scope, name))}
    if scope.tenant or scope.namespace:
        # A namespace's name begins with its tenant's, which has an index.
        tenant = scope.tenant or scope.namespace.partition("/")[0]
        named |= {"slice": Slice.NAMESPACE, "tenant": tenant}
        return named | ({"name": scope.namespace} if scope.namespace else {})
    if scope.worker:
        return named | {"slice": Slice.WORKER, "name": scope.worker}
    return named | {"slice": Slice.ROUTER}
