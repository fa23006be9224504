"""Compares times to first token: before and after a change, or between two of a kind, in cohorts that match.

A cohort holds requests of one model, prompt length and load on the worker (`router.contract.cohorts`): in a later hour
prompts may be longer or workers busier, and that is no effect of a change. Whether a prompt was cached is not held
equal, since that is what changes act on; the comparison `cache` has the two sides differ in nothing else.

Read from `SliceRollup`: every request is in it, where sampled decisions hold slow ones too often to be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from controlplane.telemetry.bucket_reading import sums_by
from controlplane.telemetry.merge import SLICES
from controlplane.telemetry.models import SliceRollup
from controlplane.telemetry.rollup_rows import segments_q
from controlplane.telemetry.shift import Shift, shift_of, together
from controlplane.telemetry.slices import Slice, slice_of
from controlplane.telemetry.windows import SLICE_RETENTION_S, Scope, ceil_to, cover, edge_of, floor_to
from router.contract.cohorts import CACHE_CLASSES, HIT, MISS, PROMPT_TOKENS_FROM, cohort_of
from router.contract.histogram import Buckets, quantile

KINDS = ("cache", "change", "namespace", "template", "model", "worker", "router")
OF_THE_FLEET = frozenset({"worker", "router"})
"""Kinds whose figures are those of all tenants together."""

SUGGESTIONS_MAX = 200
LENGTHS = range(len(PROMPT_TOKENS_FROM))

CohortKey = tuple[str, int, int]
"""Model ("" where the models themselves are compared), place in the length bands, place in the load bands."""
Histograms = dict[CohortKey, Buckets]
Counted = tuple[str, int, int]
"""Model, key, count."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """`a` and `b` are names of the kind: of workers and routers several; the other kinds take the first."""

    kind: str = "cache"
    at: datetime | None = None
    """Of a change."""
    a: tuple[str, ...] = ()
    b: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cohort:
    model: str
    length: int
    """Place in `PROMPT_TOKENS_FROM`."""
    load: int
    """Place in `REQUESTS_BESIDE_FROM`."""
    before_count: int
    after_count: int
    shift: Shift | None
    """None: too few samples."""


@dataclass(frozen=True, slots=True)
class Deltas:
    """`before` is side a, `after` side b."""

    comparison: Comparison
    before_span: Scope
    after_span: Scope
    cohorts: list[Cohort] = field(default_factory=list)
    """Those with most samples first."""
    overall: Shift | None = None
    """Of the cohorts with samples enough."""
    compared_share: float | None = None
    """Requests in those cohorts ÷ all requests of both sides, 0…1."""
    refused: str = ""
    """Why nothing is compared, in words."""

    @property
    def samples(self) -> int:
        return sum(cohort.before_count + cohort.after_count for cohort in self.cohorts)


def deltas(scope: Scope, *, comparison: Comparison, now: datetime | None = None) -> Deltas:
    """Two queries. Of a change: spans of the scope's length on both its sides, the second ending now at the latest."""
    now = now or timezone.now()
    before_span, after_span = _spans(scope, comparison, now)
    empty = Deltas(comparison, before_span or scope, after_span or scope)
    refused = _refusal(scope, comparison, now)
    if refused or before_span is None or after_span is None:
        return replace(empty, refused=refused or "The change is less than a minute old: nothing came after it yet.")
    if comparison.kind == "cache":
        return _caching(empty, _summed(_conditions(scope, "", ()), before_span, now))
    kind = comparison.kind
    before = _histograms(_conditions(scope, kind, comparison.a), before_span, now, kind)
    after = _histograms(_conditions(scope, kind, comparison.b), after_span, now, kind)
    return _compared(empty, before, after)


def caching(scope: Scope, *, now: datetime | None = None) -> tuple[Deltas, list[LengthBand]]:
    """The comparison `cache` and `hit_against_miss` of one reading of the rows."""
    now = now or timezone.now()
    counts = _summed(slice_of(scope), scope, now)
    return _caching(Deltas(Comparison(), scope, scope), counts), _bands(counts)


def _refusal(scope: Scope, comparison: Comparison, now: datetime) -> str:
    kind = comparison.kind
    if kind == "change":
        if comparison.at is None:
            return "Choose a change, or a time."
        return "The time lies in the future." if comparison.at >= now else ""
    if kind in OF_THE_FLEET and (scope.tenant or scope.namespace):
        return f"Figures of a {kind} are those of all tenants together: leave the tenant out of the scope."
    if kind != "cache" and not (comparison.a and comparison.b):
        return f"Name the two {kind}s to compare."
    if kind in ("namespace", "template") and scope.tenant:
        owners = {name.rpartition("/")[0] for name in (comparison.a[0], comparison.b[0])}
        if owners - {scope.tenant, ""}:
            return f"Name two {kind}s of {scope.tenant}: the scope is that tenant."
    return ""


def _spans(scope: Scope, comparison: Comparison, now: datetime) -> tuple[Scope | None, Scope | None]:
    """The minute of a change belongs to neither side."""
    if comparison.kind != "change" or comparison.at is None:
        return scope, scope
    span = scope.to - scope.from_
    ends, begins = floor_to(comparison.at, 60), ceil_to(comparison.at + timedelta(seconds=1), 60)
    last = min(begins + span, now)
    before = replace(scope, from_=floor_to(ends - span, edge_of(scope) or 60), to=ends)
    return before, replace(scope, from_=begins, to=last) if last > begins else None


def _conditions(scope: Scope, kind: str, names: tuple[str, ...]) -> dict[str, Any]:
    """On the rows of one side. A tenant in the scope holds whatever the names say."""
    if kind == "worker":
        return _without_name(slice_of(replace(scope, worker=""))) | {"slice": Slice.WORKER, "name__in": names}
    if kind == "router":
        return _without_name(slice_of(replace(scope, worker=""))) | {"slice": Slice.ROUTER, "name__in": names}
    if kind == "model":
        return slice_of(scope) | {"model": names[0]}
    if kind == "namespace":
        tenant = scope.tenant or names[0].partition("/")[0]
        return slice_of(replace(scope, tenant=tenant, namespace=names[0]))
    if kind == "template":
        owner, _, template = names[0].rpartition("/")
        named = slice_of(replace(scope, tenant=scope.tenant or owner or "-"))
        return named | {"template": template}
    return slice_of(scope)


def _without_name(conditions: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in conditions.items() if name != "name"}


def _summed(conditions: Mapping[str, Any], span: Scope, now: datetime, *, exact: bool = False) -> list[Counted]:
    """Each key once a model. Unless `exact`, the ends of a long span are cut to its widest rows."""
    segments = cover(span, now=now, kept=SLICE_RETENTION_S, edge_s=0 if exact else edge_of(span))
    rows = SliceRollup.objects.filter(segments_q(segments), **conditions).exclude(pool="", model="")
    found = {row["model"]: row["cohorts"] for row in sums_by(rows, ("model",), SLICES, ("cohorts",))}
    return [(model, int(key), count) for model, counts in found.items() for key, count in counts.items()]


def _histograms(conditions: Mapping[str, Any], span: Scope, now: datetime, kind: str) -> Histograms:
    found: Histograms = {}
    for model, key, count in _summed(conditions, span, now, exact=kind == "change"):
        length, load, _, bucket = cohort_of(key)
        buckets = found.setdefault(("" if kind == "model" else model, length, load), {})
        buckets[bucket] = buckets.get(bucket, 0) + count
    return found


def _caching(empty: Deltas, counts: Iterable[Counted]) -> Deltas:
    found: dict[int, Histograms] = {cache: {} for cache in range(len(CACHE_CLASSES))}
    for model, key, count in counts:
        length, load, cache, bucket = cohort_of(key)
        buckets = found[cache].setdefault((model, length, load), {})
        buckets[bucket] = buckets.get(bucket, 0) + count
    return _compared(empty, found[MISS], found[HIT])


def _compared(empty: Deltas, before: Histograms, after: Histograms) -> Deltas:
    cohorts = [_cohort(key, before.get(key, {}), after.get(key, {})) for key in sorted(before.keys() | after.keys())]
    told = [cohort for cohort in cohorts if cohort.shift is not None]
    whole = sum(cohort.before_count + cohort.after_count for cohort in cohorts)
    compared = sum(cohort.before_count + cohort.after_count for cohort in told)
    return replace(
        empty,
        cohorts=sorted(cohorts, key=lambda each: (-min(each.before_count, each.after_count), each.model, each.length)),
        overall=together(cohort.shift for cohort in told if cohort.shift is not None),
        compared_share=compared / whole if whole else None,
    )


def _cohort(key: CohortKey, before: Buckets, after: Buckets) -> Cohort:
    model, length, load = key
    return Cohort(model, length, load, sum(before.values()), sum(after.values()), shift_of(before, after))


@dataclass(frozen=True, slots=True)
class LengthBand:
    """Hits against misses of one band of prompt lengths, whatever their load. Milliseconds."""

    length: int
    """Place in `PROMPT_TOKENS_FROM`."""
    hit_ms: float | None
    """Median."""
    miss_ms: float | None
    hit_count: int
    miss_count: int
    shift: Shift | None
    """From miss to hit; None: too few samples."""


def hit_against_miss(scope: Scope, *, now: datetime | None = None) -> list[LengthBand]:
    """Every band, from the shortest. One query."""
    return _bands(_summed(slice_of(scope), scope, now or timezone.now()))


def _bands(counts: Iterable[Counted]) -> list[LengthBand]:
    found: dict[tuple[int, int], Buckets] = {}
    for _, key, count in counts:
        length, _, cache, bucket = cohort_of(key)
        buckets = found.setdefault((length, cache), {})
        buckets[bucket] = buckets.get(bucket, 0) + count
    return [_band(length, found.get((length, HIT), {}), found.get((length, MISS), {})) for length in LENGTHS]


def _band(length: int, hit: Buckets, miss: Buckets) -> LengthBand:
    return LengthBand(
        length=length,
        hit_ms=quantile(hit, 0.5),
        miss_ms=quantile(miss, 0.5),
        hit_count=sum(hit.values()),
        miss_count=sum(miss.values()),
        shift=shift_of(miss, hit),
    )


def names_with_traffic(scope: Scope, *, kind: str, now: datetime | None = None) -> list[str]:
    """What of a kind may be compared, the first SUGGESTIONS_MAX by name. One query."""
    now = now or timezone.now()
    if kind in OF_THE_FLEET and (scope.tenant or scope.namespace):
        return []
    segments = cover(scope, now=now, kept=SLICE_RETENTION_S, edge_s=edge_of(scope))
    named = replace(scope, namespace="", worker="", model="" if kind == "model" else scope.model)
    rows = SliceRollup.objects.filter(segments_q(segments), **_suggested(named, kind)).exclude(pool="", model="")
    if kind == "template":
        pairs = rows.exclude(template="").values_list("tenant", "template").distinct().order_by("tenant", "template")
        return [f"{tenant}/{template}" for tenant, template in pairs[:SUGGESTIONS_MAX]]
    column = "model" if kind == "model" else "name"
    return list(rows.values_list(column, flat=True).distinct().order_by(column)[:SUGGESTIONS_MAX])


def _suggested(scope: Scope, kind: str) -> dict[str, Any]:
    if kind in OF_THE_FLEET:
        return slice_of(scope) | {"slice": kind}
    return slice_of(scope) if kind == "model" else slice_of(scope) | {"slice": Slice.NAMESPACE}
