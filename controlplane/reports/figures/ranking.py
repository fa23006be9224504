"""Who asks for most: tenants (or a tenant's namespaces) and prefixes, from the rollups of hours."""

from __future__ import annotations

from typing import Any

from django.db.models import Max, Q, Sum

from controlplane.reports.figures.span import Subject
from controlplane.telemetry.models import PrefixHeatRollup, RequestRollup
from controlplane.telemetry.rollup_rows import segments_q

Figures = dict[str, Any]
SHOWN = 10


def busiest(subject: Subject) -> list[Figures]:
    """Tenants by prompt tokens; in a tenant's report its namespaces."""
    name = "namespace" if subject.tenant else "tenant"
    rows = RequestRollup.objects.filter(segments_q([subject.hours])).exclude(**{name: ""})
    if subject.tenant:
        rows = rows.filter(tenant=subject.tenant)
    if subject.pool:
        rows = rows.filter(pool=subject.pool)
    fields = ("requests", "prompt_tokens", "hit_tokens", "hit_prompt_tokens", "saved_prefill_ms")
    sums = rows.values(name).annotate(**{f"all_{field}": Sum(field) for field in fields})
    return [
        {
            "name": row[name],
            "requests": row["all_requests"],
            "prompt_tokens": row["all_prompt_tokens"],
            "hit_share": row["all_hit_tokens"] / row["all_hit_prompt_tokens"] if row["all_hit_prompt_tokens"] else None,
            "saved_gpu_s": row["all_saved_prefill_ms"] / 1000,
        }
        for row in sums.order_by("-all_prompt_tokens", name)[:SHOWN]
    ]


def hot_prefixes(subject: Subject) -> list[Figures]:
    """By requests, with the busiest worker's share. A prefix is a keyed id; a tenant's report names no worker."""
    rows = PrefixHeatRollup.objects.filter(segments_q([subject.hours]))
    if subject.tenant:
        rows = rows.filter(namespace__startswith=f"{subject.tenant}/")
    if subject.pool:
        rows = rows.filter(pool=subject.pool)
    dims = ("namespace", "pool", "prefix")
    sums = rows.values(*dims).annotate(all=Sum("requests"), most=Max("tokens")).order_by("-all", *dims)[:SHOWN]
    found = {tuple(row[name] for name in dims): row for row in sums}
    if not found:
        return []
    which = Q()
    for key in found:
        which |= Q(**dict(zip(dims, key, strict=True)))
    by_worker: dict[tuple[str, ...], dict[str, int]] = {}
    for *key, counts in rows.filter(which).values_list(*dims, "by_worker"):
        held = by_worker.setdefault(tuple(key), {})
        for worker, count in counts.items():
            held[worker] = held.get(worker, 0) + count
    return [_prefix(subject, row, by_worker.get(key, {})) for key, row in found.items()]


def _prefix(subject: Subject, row: Figures, by_worker: dict[str, int]) -> Figures:
    top = max(by_worker, key=lambda worker: (by_worker[worker], worker), default="")
    return {
        "prefix": row["prefix"],
        "namespace": row["namespace"],
        "pool": row["pool"],
        "tokens": row["most"],
        "requests": row["all"],
        "workers": len(by_worker),
        "top_worker": "" if subject.tenant else top,
        "top_share": by_worker[top] / row["all"] if top and row["all"] else None,
    }
