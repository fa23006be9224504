"""How contributions to rollup rows combine. Pure and associative: any order and grouping gives the same row.

A contribution is a sparse dict: a field that is not in it is left alone. The one exception to "any order" are `lasts`
(a level at the end of the bucket), where the later contribution wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Values = dict[str, Any]
"""Field name → number, or dict of label → count."""
Key = tuple[Any, ...]
SUMS, DICTS, MAXES, LASTS = "sums", "dicts", "maxes", "lasts"


@dataclass(frozen=True, slots=True)
class Shape:
    """Which fields of a table add up, add up label by label, take the maximum, or keep the last."""

    dims: tuple[str, ...]
    sums: tuple[str, ...]
    dicts: tuple[str, ...] = ()
    maxes: tuple[str, ...] = ()
    lasts: tuple[str, ...] = ()
    how: Mapping[str, str] = field(init=False, repr=False, compare=False)
    """Field → SUMS, DICTS, MAXES or LASTS."""

    def __post_init__(self) -> None:
        kinds = {SUMS: self.sums, DICTS: self.dicts, MAXES: self.maxes, LASTS: self.lasts}
        object.__setattr__(self, "how", {name: kind for kind, names in kinds.items() for name in names})

    @property
    def values(self) -> tuple[str, ...]:
        return (*self.sums, *self.dicts, *self.maxes, *self.lasts)


REQUESTS = Shape(
    dims=("tenant", "namespace", "pool", "worker", "model", "template"),
    sums=(
        "requests", "retries", "prompt_tokens", "output_tokens", "usage_known", "hit_tokens", "hit_known",
        "hit_prompt_tokens", "predicted_hit_tokens", "saved_prefill_ms", "slo_met", "slo_known", "isolation_checked",
        "isolation_unknown", "isolation_violations",
    ),
    dicts=("errors", "spills", "ttft_hit", "ttft_partial", "ttft_miss", "ttft_unknown", "duration", "decision_us"),
)  # fmt: skip

TOTALS = replace(REQUESTS, dims=("pool", "model"))

WORKERS = Shape(
    dims=("worker",),
    sums=(
        "polls_ok", "polls_failed", "running_sum", "running_samples", "waiting_sum", "waiting_samples", "kv_use_sum",
        "kv_use_samples", "delta_samples", "counter_resets", "prefix_query_tokens", "prefix_hit_tokens",
        "prompt_tokens", "generation_tokens", "preemptions", "requests_finished", "ttft_sum_s", "ttft_count",
        "queue_sum_s", "queue_count", "kv_samples", "stored_blocks", "removed_blocks", "restored_blocks", "cleared",
        "event_gaps", "loaded_bytes", "load_s", "gpu_samples", "gpu_util_sum", "gpu_power_sum_w", "xid_errors",
    ),
    dicts=("prompt_tokens_by_source", "ttft_buckets", "queue_buckets"),
    maxes=("running_max", "waiting_max", "kv_use_max", "gpu_memory_used_max_mib"),
    lasts=("resident_blocks",),
)  # fmt: skip

SLICES = Shape(
    dims=("slice", "name", "tenant", "template", "pool", "model"),
    sums=(
        "requests", "unknown_prompt_tokens", "prompt_tokens", "repeated_tokens", "best_hit_tokens",
        "expected_hit_tokens", "hit_tokens", "unjudged_tokens", "saved_prefill_ms",
    ),
    dicts=("routing_loss", "hit_size", "cohorts"),
)  # fmt: skip

CHURN = ("stored", "removed", "restored")
WORKER_TOTALS = Shape(
    dims=("pool",),
    sums=(
        "delta_samples", "loaded_bytes", "load_s", "kv_use_samples", "kv_samples", "event_gaps",
        *(f"{name}_per_min" for name in CHURN),
    ),
    dicts=("prompt_tokens_by_source",),
    maxes=("kv_use_max",),
)  # fmt: skip


def churn_rates(row: Mapping[str, Any]) -> Values:
    """Blocks a minute of one worker's row, at the rate of the seconds that its subscriber reported."""
    seconds = row.get("kv_samples", 0)
    return {f"{name}_per_min": row.get(f"{name}_blocks", 0) * 60 / seconds if seconds else 0.0 for name in CHURN}


HEAT = Shape(
    dims=("namespace", "pool", "prefix"),
    sums=("requests", "prompt_tokens", "hit_tokens", "queue_ms", "spills", "placed"),
    dicts=("by_worker",),
    maxes=("tokens", "head_tokens", "load", "homes"),
    lasts=("holders",),
)

EVICTIONS = Shape(dims=("pool",), sums=("seconds",), dicts=("evicted", "restored_of", "lifetime", "restore_gap"))


@dataclass(frozen=True, slots=True)
class Contribution:
    at_s: float
    """Unix seconds: decides the bucket."""
    dims: Key
    values: Values


def merge_into(shape: Shape, row: Values, values: Mapping[str, Any]) -> None:
    """Add `values` to `row` in place; fields that are none of the shape's are left out.

    The row keeps no reference to a dict of `values`; its own dicts are added to in place.
    """
    how = shape.how
    if not row:
        row.update({name: value for name, value in values.items() if name in how})
        for name in shape.dicts:
            if name in row:
                _own_counts(row, name)
        return
    for name, value in values.items():
        kind = how.get(name)
        if kind is SUMS:
            row[name] = row[name] + value if name in row else value
        elif kind is DICTS:
            if value:
                _add_counts(row, name, value)
        elif kind is MAXES:
            row[name] = max(row.get(name, 0), value)
        elif kind is LASTS:
            row[name] = value


def _own_counts(row: Values, name: str) -> None:
    counts = row[name]
    if counts:
        row[name] = dict(counts)
    else:
        del row[name]


def _add_counts(row: Values, name: str, counts: Mapping[str, float]) -> None:
    own = row.get(name)
    if not own:
        row[name] = dict(counts)
        return
    for label, count in counts.items():
        own[label] = own[label] + count if label in own else count


def merged_counts(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    merged = dict(first)
    for label, count in second.items():
        merged[label] = merged.get(label, 0) + count
    return merged


def grouped(shape: Shape, contributions: Iterable[Contribution], *, width_s: int) -> dict[tuple[int, Key], Values]:
    """(bucket start in Unix seconds, dimensions) → merged values, for one width."""
    rows: dict[tuple[int, Key], Values] = {}
    for item in contributions:
        key = (int(item.at_s // width_s) * width_s, item.dims)
        row = rows.get(key)
        if row is None:
            row = rows[key] = {}
        merge_into(shape, row, item.values)
    return rows


def widened(
    shape: Shape, rows: Mapping[tuple[int, Key], Values], *, width_s: int, since_s: float
) -> dict[tuple[int, Key], Values]:
    """`grouped` rows of a finer width as those of a wider one, a multiple of it; rows that begin before `since_s` are
    left out. In the order of time, so that the last level of the later one stands."""
    found: dict[tuple[int, Key], Values] = {}
    for start, dims in sorted(rows, key=lambda key: key[0]):
        if start >= since_s:
            key = (start // width_s * width_s, dims)
            into = found.get(key)
            if into is None:
                into = found[key] = {}
            merge_into(shape, into, rows[(start, dims)])
    return found
