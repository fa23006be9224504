"""How much of the prompts could have come from caches, how much did, and where the rest was lost.

Everything is read from `SliceRollup`. A fleet's figures come from the rows of its routers, a tenant's from those of its
namespaces, a worker's from its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db.models import Sum
from django.utils import timezone

from controlplane.telemetry.available_figures import NamedReach, Reach, ReachSeries
from controlplane.telemetry.bucket_reading import Place, sums_by
from controlplane.telemetry.figures import Values as Column
from controlplane.telemetry.merge import SLICES, Values, merge_into
from controlplane.telemetry.models import SliceRollup
from controlplane.telemetry.rollup_rows import quantile_of, segments_q
from controlplane.telemetry.slices import Slice, slice_of
from controlplane.telemetry.windows import SLICE_RETENTION_S, Grid, Scope, cover, edge_of, grid_of

SUMS = (
    "requests", "unknown_prompt_tokens", "prompt_tokens", "repeated_tokens", "best_hit_tokens", "expected_hit_tokens",
    "hit_tokens", "unjudged_tokens", "saved_prefill_ms",
)  # fmt: skip


def reach_series(scope: Scope, *, now: datetime | None = None) -> ReachSeries:
    """Two queries at most."""
    now = now or timezone.now()
    grid = grid_of(scope, now=now, kept=SLICE_RETENTION_S)
    sums: list[Values | None] = [None] * grid.count
    models: dict[str, Values] = {}
    for point, model, values in _rows(scope, grid):
        if values:
            merge_into(SLICES, models.setdefault(model, {}), values)
        bucket = sums[point]
        if bucket is None:
            bucket = sums[point] = {}
        merge_into(SLICES, bucket, values)
    models.pop("", None)
    return _series(grid, sums, models, min(scope.to, now), now)


def _rows(scope: Scope, grid: Grid) -> Iterable[tuple[int, str, Values]]:
    """(place in the grid, model, fields), and empty fields of the buckets in which a router reported at all."""
    conditions = slice_of(scope)
    in_time = SliceRollup.objects.filter(segments_q([grid.segment])).annotate(point=Place(grid))
    for row in sums_by(in_time.filter(**conditions), ("point", "model"), SLICES, (*SUMS, "routing_loss", "hit_size")):
        yield row.pop("point"), row.pop("model"), row
    if conditions != {"slice": Slice.ROUTER}:
        # Every router that reports adds zeros to its row without pool: an idle bucket is no gap.
        idle = in_time.filter(slice=Slice.ROUTER, pool="", model="").order_by()
        for point in idle.values_list("point", flat=True).distinct():
            yield point, "", {}


def _series(
    grid: Grid, sums: Sequence[Values | None], models: Mapping[str, Values], end: datetime, now: datetime
) -> ReachSeries:
    total: Values = {}
    for row in sums:
        merge_into(SLICES, total, row or {})
    first = next((at for at, row in zip(grid.starts(), sums, strict=True) if row is not None), None)
    return ReachSeries(
        buckets=grid.starts(),
        step_s=grid.step_s,
        open_from=_open_from(grid, now),
        prompt_tokens=[None if row is None else float(_prompt(row)) for row in sums],
        repeated_tokens=_column(sums, "repeated_tokens"),
        expected_hit_tokens=_column(sums, "expected_hit_tokens"),
        hit_tokens=_column(sums, "hit_tokens"),
        hit_size_p50=[quantile_of(row.get("hit_size", {}), 0.5) if row else None for row in sums],
        hit_size_p95=[quantile_of(row.get("hit_size", {}), 0.95) if row else None for row in sums],
        total=None if first is None else reach_of(total),
        seconds=0.0 if first is None else max(1.0, (end - first).total_seconds()),
        total_size_p50=quantile_of(total.get("hit_size", {}), 0.5),
        total_size_p95=quantile_of(total.get("hit_size", {}), 0.95),
        routing_loss=dict(total.get("routing_loss", {})),
        models=_most_lost(models),
    )


def _open_from(grid: Grid, now: datetime) -> datetime | None:
    index = grid.index_of(now)
    return None if index is None else grid.starts()[index]


def _column(sums: Sequence[Values | None], name: str) -> Column:
    return [None if row is None else float(row.get(name, 0)) for row in sums]


def _prompt(values: Mapping[str, Any]) -> int:
    return int(values.get("prompt_tokens", 0) + values.get("unknown_prompt_tokens", 0))


def reach_of(values: Mapping[str, Any]) -> Reach:
    """Of summed fields of `SliceRollup`."""
    return Reach(
        requests=values.get("requests", 0),
        prompt_tokens=_prompt(values),
        repeated_tokens=values.get("repeated_tokens", 0),
        best_hit_tokens=values.get("best_hit_tokens", 0),
        expected_hit_tokens=values.get("expected_hit_tokens", 0),
        hit_tokens=values.get("hit_tokens", 0),
        unknown_tokens=values.get("unjudged_tokens", 0) + values.get("unknown_prompt_tokens", 0),
        saved_prefill_ms=values.get("saved_prefill_ms", 0.0),
    )


def reach_by_namespace(scope: Scope, *, now: datetime | None = None) -> tuple[list[NamedReach], list[NamedReach]]:
    """Namespaces, and their templates (`tenant/template@version`), those that lost most first. One query."""
    names: dict[str, Values] = {}
    templates: dict[str, Values] = {}
    conditions = slice_of(scope) | {"slice": Slice.NAMESPACE}
    if not (scope.tenant or scope.namespace):
        conditions.pop("name", None)
    for row in _summed(conditions, scope, now, ("name", "tenant", "template")):
        merge_into(SLICES, names.setdefault(row["name"], {}), row)
        if row["template"]:
            merge_into(SLICES, templates.setdefault(f"{row['tenant']}/{row['template']}", {}), row)
    return _most_lost(names), _most_lost(templates)


def reach_by_worker(scope: Scope, *, now: datetime | None = None) -> list[NamedReach]:
    """Workers in the scope's pool, of all tenants, those that lost most first. One query."""
    conditions: dict[str, Any] = {"slice": Slice.WORKER}
    conditions |= {name: value for name in ("pool", "model") if (value := getattr(scope, name))}
    if scope.worker:
        conditions["name"] = scope.worker
    found: dict[str, Values] = {}
    for row in _summed(conditions, scope, now, ("name",)):
        merge_into(SLICES, found.setdefault(row["name"], {}), row)
    return _most_lost(found)


def _summed(
    conditions: Mapping[str, Any], scope: Scope, now: datetime | None, dims: Sequence[str]
) -> Iterable[dict[str, Any]]:
    now = now or timezone.now()
    segments = cover(scope, now=now, kept=SLICE_RETENTION_S, edge_s=edge_of(scope))
    rows = SliceRollup.objects.filter(segments_q(segments), **conditions).order_by()
    for row in rows.values_list(*dims).annotate(*(Sum(name) for name in SUMS)):
        yield dict(zip((*dims, *SUMS), row, strict=True))


def _most_lost(found: Mapping[str, Values]) -> list[NamedReach]:
    named = [NamedReach(name, reach_of(values)) for name, values in found.items() if _prompt(values)]
    return sorted(named, key=lambda each: (each.reach.hit_tokens - each.reach.prompt_tokens, each.name))
