"""What a policy would have changed: the recorded decisions of the last minutes, judged again by `router.core`.

Both arms are judged: the policy in force (how often it repeats the recorded choice is the `fidelity` of the replay) and
the proposed one, in the same state. Each decision stands alone, in the state that it met: what other choices would have
left in the caches and queues is not followed, so effects that build up are underrated. A what-if follows them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
from django.db import transaction
from django.utils import timezone

from controlplane.audit.services import lock_chain
from controlplane.errors import Invalid
from controlplane.policies.rows import checked_values, new_row
from controlplane.policies.variants import Passing, read_policies, variants_of
from controlplane.snapshots.compiler import compile_snapshot
from controlplane.snapshots.selectors import rollout as routers_seen
from controlplane.telemetry.models import DecisionRecord
from controlplane.what_if.scenarios import of_policy
from router.contract.ids import PoolId
from router.contract.snapshot import PolicySnapshot
from router.contract.telemetry import DecisionSample
from router.core.rejudge import Judged, Rejudge, Unjudgeable
from router.core.variants import settled

MINUTES_MAX = 24 * 60
MINUTES_DEFAULT = 15
DECISIONS_MAX = 2000
"""Of the newest: at 4 workers about a second of CPU for both arms."""
CANDIDATES_MAX = 40_000
"""Workers of all these decisions: each costs 0.06 ms, so an answer takes at most about 2.5 s of CPU."""
FEW_DECISIONS = 100
"""Below it the answer says that they are too few."""
Z = 1.96
"""Half-width of a 95 % interval in standard errors."""


@dataclass(frozen=True, slots=True)
class Change:
    """A mean over the decisions that both arms judged, and the paired difference with its 95 % interval."""

    before: float | None
    after: float | None
    difference: float | None
    low: float | None
    high: float | None
    certain: bool
    """Whether the decisions are enough and the interval excludes 0."""


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    worker: str
    requests_before: int
    requests_after: int
    uncached_tokens_before: int
    uncached_tokens_after: int


@dataclass(frozen=True, slots=True)
class DryRun:
    from_: datetime
    to: datetime
    decisions: int
    """Judged by both arms."""
    skipped: dict[str, int]
    """Records that could not be judged, by reason."""
    too_few: bool
    kv_use_known_share: float | None
    """Workers of the records whose KV use is known: without it a watermark changes nothing here."""
    fidelity: float | None
    """Share of the recorded choices that the policy in force repeats."""
    moved: int
    """Decisions that would go to another worker."""
    refused_before: int
    refused_after: int
    hit_share: Change
    ttft_ms: Change
    spills_before: dict[str, int]
    spills_after: dict[str, int]
    workers: list[WorkerLoad] = field(default_factory=list)
    scope: str = ""
    """The policy's."""
    scenario: dict[str, Any] | None = None
    """The proposed values for a what-if, which follows what builds up; None: nothing of them is simulated."""

    @property
    def spill_rows(self) -> list[tuple[str, int, int]]:
        """(reason, before, after) of every reason that occurs."""
        reasons = sorted({*self.spills_before, *self.spills_after})
        return [(reason, self.spills_before.get(reason, 0), self.spills_after.get(reason, 0)) for reason in reasons]


Pair = tuple[DecisionSample, Judged | None, Judged | None]


def dry_run(
    *, kind: str, scope: str, values: Mapping[str, Any], minutes: int = MINUTES_DEFAULT, now: datetime | None = None
) -> DryRun:
    """Nothing is stored. Raises Invalid naming the field, or NotFound for the scope."""
    checked = checked_values(kind, scope, values)
    if not 1 <= minutes <= MINUTES_MAX:
        raise Invalid.field("minutes", f"Minutes are a whole number from 1 to {MINUTES_MAX}.")
    new_row(kind, scope)
    to = now or timezone.now()
    from_ = to - timedelta(minutes=minutes)
    before, after = _policies(kind, scope, checked, to)
    samples, skipped = _samples(scope, from_, to)
    pairs = _judged(samples, before, after, skipped, alone=len(routers_seen().routers) <= 1)
    return replace(_summary(pairs, skipped, from_, to), scope=scope, scenario=of_policy(kind, checked))


def _policies(kind: str, scope: str, values: dict[str, Any], now: datetime) -> tuple[PolicySnapshot, PolicySnapshot]:
    """What holds without roll-outs, and the same with the proposed values."""
    with transaction.atomic():
        lock_chain()
        snapshot = compile_snapshot()
        standing, passing = read_policies()
    overrides = [item for item in passing if item.until is not None]
    others = [item for item in overrides if (item.kind, item.scope) != (kind, scope)]
    proposed = Passing("proposed", kind, scope, values)

    def with_(items: Iterable[Passing]) -> PolicySnapshot:
        variants = variants_of(items, standing, pools=snapshot.pools)
        chosen = msgspec.structs.replace(snapshot, variants=variants)
        return settled(chosen, router="", now=now.timestamp()).snapshot

    return with_(overrides), with_(_by_width([*others, proposed]))


def _by_width(items: list[Passing]) -> list[Passing]:
    widths = {"global": 0, "pool": 1, "namespace": 2}
    return sorted(items, key=lambda item: widths[item.scope.partition(":")[0]])


def _samples(scope: str, from_: datetime, to: datetime) -> tuple[list[DecisionSample], Counter[str]]:
    """The newest records in the order of their time, and how many were left out."""
    rows = DecisionRecord.objects.filter(at__gte=from_, at__lt=to)
    kind, _, name = scope.partition(":")
    if kind != "global":
        rows = rows.filter(**{kind: name})
    skipped: Counter[str] = Counter()
    samples: list[DecisionSample] = []
    candidates = 0
    for detail in rows.order_by("-at").values_list("detail", flat=True).iterator(chunk_size=200):
        try:
            sample = msgspec.convert(detail, DecisionSample)
        except msgspec.ValidationError:
            skipped["unreadable"] += 1
            continue
        candidates += len(sample.candidates)
        if len(samples) >= DECISIONS_MAX or candidates > CANDIDATES_MAX:
            skipped["older_than_limit"] = 1
            break
        samples.append(sample)
    return samples[::-1], skipped


def _judged(
    samples: Sequence[DecisionSample],
    before: PolicySnapshot,
    after: PolicySnapshot,
    skipped: Counter[str],
    *,
    alone: bool,
) -> list[Pair]:
    arms: dict[str, tuple[Rejudge, Rejudge]] = {}
    pairs: list[Pair] = []
    for sample in samples:
        pool = PoolId(sample.pool)
        if pool not in before.pools:
            skipped["gone"] += 1
            continue
        if pool not in arms:
            arms[pool] = (Rejudge(before, pool, alone=alone), Rejudge(after, pool, alone=alone))
        held, proposed = arms[pool]
        try:
            scene = held.scene(sample)
        except Unjudgeable as why:
            skipped[str(why)] += 1
            continue
        pairs.append((sample, held.judge(scene), proposed.judge(scene)))
    return pairs


def _summary(pairs: Sequence[Pair], skipped: Mapping[str, int], from_: datetime, to: datetime) -> DryRun:
    both = [(sample, one, other) for sample, one, other in pairs if one is not None and other is not None]
    known = [seen.kv_use is not None for sample, _, _ in pairs for seen in sample.candidates]
    repeated = [one is not None and one.worker == sample.worker for sample, one, _ in pairs]
    return DryRun(
        from_=from_,
        to=to,
        decisions=len(both),
        skipped=dict(skipped),
        too_few=len(both) < FEW_DECISIONS,
        kv_use_known_share=_mean(known),
        fidelity=_mean(repeated),
        moved=sum(one.worker != other.worker for _, one, other in both),
        refused_before=sum(one is None for _, one, _ in pairs),
        refused_after=sum(other is None for _, _, other in pairs),
        hit_share=_change([(_hit_share(one), _hit_share(other)) for _, one, other in both]),
        ttft_ms=_change([(one.ttft_ms, other.ttft_ms) for _, one, other in both]),
        spills_before=dict(Counter(one.spill for _, one, _ in both if one.spill)),
        spills_after=dict(Counter(other.spill for _, _, other in both if other.spill)),
        workers=_loads(both),
    )


def _hit_share(judged: Judged) -> float:
    tokens = judged.hit_tokens + judged.uncached_tokens
    return judged.hit_tokens / tokens if tokens else 0.0


def _change(values: Sequence[tuple[float, float]]) -> Change:
    """Paired: both arms met the same requests, so their spread cancels."""
    if not values:
        return Change(None, None, None, None, None, certain=False)
    differences = [after - before for before, after in values]
    count, mean = len(values), sum(differences) / len(values)
    spread = sum((difference - mean) ** 2 for difference in differences) / max(count - 1, 1)
    half = Z * math.sqrt(spread / count)
    return Change(
        before=sum(before for before, _ in values) / count,
        after=sum(after for _, after in values) / count,
        difference=mean,
        low=mean - half,
        high=mean + half,
        certain=count >= FEW_DECISIONS and abs(mean) > half,
    )


def _loads(both: Sequence[tuple[DecisionSample, Judged, Judged]]) -> list[WorkerLoad]:
    counts: dict[str, list[int]] = {}
    for sample, one, other in both:
        for seen in sample.candidates:
            counts.setdefault(seen.worker, [0, 0, 0, 0])
        for judged, at in ((one, 0), (other, 1)):
            row = counts.setdefault(judged.worker, [0, 0, 0, 0])
            row[at] += 1
            row[at + 2] += judged.uncached_tokens
    return [WorkerLoad(worker, *row) for worker, row in sorted(counts.items())]


def _mean(values: Sequence[bool]) -> float | None:
    return sum(values) / len(values) if values else None
