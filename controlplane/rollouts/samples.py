"""Sums of running roll-outs by arm: written inside the ingest transaction, read by the guard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from controlplane.policies.models import Rollout
from controlplane.rollouts.guard import Arm
from controlplane.rollouts.models import RolloutSample
from controlplane.telemetry.rollup_rows import request_rows
from controlplane.telemetry.windows import WIDTHS_S, Scope, aligned_pair, cover, floor_to
from router.contract.histogram import merge
from router.contract.telemetry import RequestRow, Shipment

SETTLE_S = 5.0
"""Seconds of a stage that are left out: requests that finish then were decided before it."""
BEFORE_S = 900.0
"""The time before a roll-out that stands in for routers without the candidate."""
CLIENTS_OWN = frozenset(("bad_request", "unauthorized", "forbidden", "not_found", "too_large", "client_disconnect"))
"""Failures that say nothing about a policy."""
TTFT_FIELDS = ("ttft_hit", "ttft_partial", "ttft_miss", "ttft_unknown")

_Key = tuple[int, int, str, str]
"""Rollout, stage, arm, router."""


def record_samples(shipments: Sequence[Shipment]) -> None:
    """One query while no roll-out runs."""
    running = list(Rollout.objects.filter(state=Rollout.State.RUNNING))
    if not running:
        return
    sums: dict[_Key, Arm] = {}
    for shipment in shipments:
        if shipment.router is None:
            continue
        for rollout in running:
            if shipment.at < rollout.stage_at.timestamp() + SETTLE_S:
                continue
            has_it = rollout.variant_id in shipment.router.variants
            arm = RolloutSample.Arm.CANDIDATE if has_it else RolloutSample.Arm.OTHERS
            into = sums.setdefault((rollout.pk, rollout.stage, arm, shipment.source), Arm())
            for row in shipment.requests:
                if _concerns(rollout.scope, row.pool, row.namespace):
                    _add(into, row)
    _store(sums)


def arms(rollout: Rollout) -> tuple[Arm, Arm]:
    """(candidate, others) of the present stage. Where the others have too few requests, as at the last stage, the time
    before the roll-out stands in for them if it has more."""
    found = {RolloutSample.Arm.CANDIDATE: Arm(), RolloutSample.Arm.OTHERS: Arm()}
    for row in rollout.samples.filter(stage=rollout.stage):
        into = found[RolloutSample.Arm(row.arm)]
        into.requests += row.requests
        into.errors += row.errors
        into.hit_tokens += row.hit_tokens
        into.hit_prompt_tokens += row.hit_prompt_tokens
        merge(into.ttft, _numbered(row.ttft))
    candidate, others = found[RolloutSample.Arm.CANDIDATE], found[RolloutSample.Arm.OTHERS]
    if others.requests >= rollout.guards["requests_min"]:
        return candidate, others
    return candidate, max(others, before(rollout), key=lambda arm: arm.requests)


def before(rollout: Rollout) -> Arm:
    """All routers, in the quarter of an hour before the roll-out began."""
    kind, _, name = rollout.scope.partition(":")
    to = floor_to(rollout.started_at, WIDTHS_S[0])  # the bucket in which it began holds its own traffic too
    scope = Scope(
        from_=to - timedelta(seconds=BEFORE_S),
        to=to,
        pool=name if kind == "pool" else "",
        namespace=name if kind == "namespace" else "",
    )
    fields = ("requests", "errors", "hit_tokens", "hit_prompt_tokens", *TTFT_FIELDS)
    span, _ = aligned_pair(scope, now=to)
    into = Arm()
    for _, row in request_rows(scope, cover(span, now=to), fields, presence=False):
        _add_row(into, row)
    return into


def _concerns(scope: str, pool: str, namespace: str) -> bool:
    kind, _, name = scope.partition(":")
    return kind == "global" or name == (pool if kind == "pool" else namespace)


def _add(into: Arm, row: RequestRow) -> None:
    _add_row(into, {name: getattr(row, name) for name in (*_SUMMED, "errors", *TTFT_FIELDS)})


_SUMMED = ("requests", "hit_tokens", "hit_prompt_tokens")


def _add_row(into: Arm, row: Mapping[str, Any]) -> None:
    """Any: a row's fields by name, as counts and dicts of counts."""
    into.requests += row["requests"]
    into.errors += sum(count for kind, count in row["errors"].items() if kind not in CLIENTS_OWN)
    into.hit_tokens += row["hit_tokens"]
    into.hit_prompt_tokens += row["hit_prompt_tokens"]
    for name in TTFT_FIELDS:
        merge(into.ttft, _numbered(row[name]))


def _numbered(buckets: Mapping[Any, int]) -> dict[int, int]:
    return {int(index): count for index, count in buckets.items()}


def _store(sums: Mapping[_Key, Arm]) -> None:
    for (rollout, stage, arm, router), found in sums.items():
        if not found.requests:
            continue
        row, _ = RolloutSample.objects.get_or_create(rollout_id=rollout, stage=stage, arm=arm, router=router[:128])
        ttft = _numbered(row.ttft)
        merge(ttft, found.ttft)
        row.requests += found.requests
        row.errors += found.errors
        row.hit_tokens += found.hit_tokens
        row.hit_prompt_tokens += found.hit_prompt_tokens
        row.ttft = {str(index): count for index, count in ttft.items()}
        row.save()
