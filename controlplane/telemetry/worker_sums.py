"""What the workers of a scope did together in each bucket: a row a bucket, however many workers.

Rates are those of each worker's own reported time, so that one that reported half of a bucket counts at its own rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db.models import Case, F, FloatField, Func, Max, Q, QuerySet, Sum, Value, When

from controlplane.telemetry.bucket_reading import sums_of_buckets
from controlplane.telemetry.merge import CHURN, WORKER_TOTALS, Values
from controlplane.telemetry.models import WorkerRollup, WorkerTotal
from controlplane.telemetry.rollup_rows import segments_q
from controlplane.telemetry.windows import Scope, Segment

SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
"""Labels of `vllm:prompt_tokens_by_source_total`: those of vLLM's `PromptTokenStats`, a closed set."""
Sums = dict[str, Any]
"""`stored`, `removed`, `restored` in blocks per minute and `gaps`, None where no subscriber spoke; sources in
tokens, `loaded_bytes`, `load_s`, None where no poll had a predecessor; `kv_use` of the fullest worker 0…1, None where
no poll was good."""


def worker_sums(scope: Scope, segments: Sequence[Segment]) -> list[tuple[int, datetime, Sums]]:
    """(width, start, sums) of the buckets with any row. One query. Honours the scope's pool and worker only."""
    if scope.worker:
        rows = rows_of_workers(scope).filter(segments_q(segments)).values("width_s", "start").annotate(**_aggregates())
        return [(row["width_s"], row["start"], dict(row)) for row in rows.order_by("start")]
    totals = WorkerTotal.objects.filter(segments_q(segments), **({"pool": scope.pool} if scope.pool else {}))
    return [(width_s, start, _sums(row)) for width_s, start, row in sums_of_buckets(totals, WORKER_TOTALS)]


def _sums(row: Values) -> Sums:
    polled, heard = row["delta_samples"] > 0, row["kv_samples"] > 0
    by_source = row.get("prompt_tokens_by_source", {})
    return {
        **{f"source_{name}": by_source.get(name) if polled else None for name in SOURCES},
        **{name: row[name] if polled else None for name in ("delta_samples", "loaded_bytes", "load_s")},
        **{name: row[f"{name}_per_min"] if heard else None for name in CHURN},
        "gaps": row["event_gaps"] if heard else None,
        "kv_use": row["kv_use_max"] if row["kv_use_samples"] else None,
    }


def rows_of_workers(scope: Scope) -> QuerySet[WorkerRollup]:
    rows = WorkerRollup.objects.all()
    if scope.worker:
        return rows.filter(worker=scope.worker)
    return rows.filter(worker__startswith=f"{scope.pool}/") if scope.pool else rows


class JsonNumber(Func):
    """A number in a JSON object by its key; null where it is absent."""

    output_field = FloatField()

    def __init__(self, field: str, key: str) -> None:
        super().__init__(F(field))
        self.key = key

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        sql, params = compiler.compile(self.source_expressions[0])
        return f"JSON_EXTRACT({sql}, %s)", (*params, f'$."{self.key}"')

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        sql, params = compiler.compile(self.source_expressions[0])
        return f"({sql} ->> %s)::double precision", (*params, self.key)


def _aggregates() -> dict[str, Any]:
    polled, heard = {"delta_samples__gt": 0}, {"kv_samples__gt": 0}
    found: dict[str, Any] = {
        f"source_{name}": _sum_where(JsonNumber("prompt_tokens_by_source", name), polled) for name in SOURCES
    }
    found |= {name: _sum_where(F(name), polled) for name in ("loaded_bytes", "load_s", "delta_samples")}
    for name in CHURN:
        rate = F(f"{name}_blocks") * Value(60.0) / F("kv_samples")
        found[name] = _sum_where(rate, heard)
    return found | {
        "gaps": _sum_where(F("event_gaps"), heard),
        "kv_use": Max("kv_use_max", filter=Q(kv_use_samples__gt=0)),
    }


def _sum_where(expression: Any, condition: dict[str, Any]) -> Sum:
    """Null where no row meets the condition."""
    return Sum(Case(When(**condition, then=expression), default=None, output_field=FloatField()))
