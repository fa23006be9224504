"""What the checks look at, read once: eight queries. Unknown stays unknown: an empty list is not a good one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Q, Sum

from controlplane.fleet.models import Finding, Worker
from controlplane.fleet.selectors import KV_STALE_AFTER_S, health_of
from controlplane.isolation.models import CanaryResult
from controlplane.prompts.models import PromptTemplateVersion
from controlplane.telemetry.breaks import WINDOW
from controlplane.telemetry.figures import HotPrefix
from controlplane.telemetry.merge import REQUESTS, Values, merge_into
from controlplane.telemetry.models import DecisionRecord, PrefixBreakRollup
from controlplane.telemetry.rollup_rows import request_rows
from controlplane.telemetry.selectors import hot_prefixes
from controlplane.telemetry.windows import Scope, aligned_pair, cover

KV_HEARD_WITHIN = timedelta(seconds=KV_STALE_AFTER_S)
TRAFFIC = timedelta(minutes=15)
DECISIONS_WITHIN = timedelta(hours=1)
DECISIONS_READ = 50
HOT_READ = 20
FINDINGS_READ_MAX = 500
CANARIES_READ_MAX = 5000
REQUEST_FIELDS = (
    "requests", "errors", "usage_known", "hit_known", "hit_tokens", "hit_prompt_tokens", "predicted_hit_tokens",
    "ttft_hit", "ttft_miss", "slo_known", "isolation_checked",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class WorkerFact:
    worker_id: str
    pool: str
    health: str
    waiting: float | None
    kv_state: str
    """Of its KV events; "" = it names no endpoint, `unknown` = nothing was heard."""
    block_size: int | None
    """As the worker says; None = it was not asked."""


@dataclass(frozen=True, slots=True)
class PoolFact:
    slug: str
    routing: str
    block_size: int
    tokenizer: str
    has_connector: bool
    transfer_gib_per_s: float | None


@dataclass(frozen=True, slots=True)
class TemplateFact:
    name: str
    accepted_lints: tuple[str, ...]
    goldens: int
    faults: int


@dataclass(frozen=True, slots=True)
class Facts:
    now: datetime
    findings: list[Finding] = field(default_factory=list)
    """Open ones."""
    workers: list[WorkerFact] = field(default_factory=list)
    """Those that should take requests."""
    pools: list[PoolFact] = field(default_factory=list)
    """Of those workers."""
    requests: Mapping[str, Any] = field(default_factory=dict)
    """Sums of the last TRAFFIC; {} = no router reported."""
    decisions: list[Mapping[str, Any]] = field(default_factory=list)
    """The newest of the last hour, as stored."""
    hot: list[HotPrefix] = field(default_factory=list)
    prompts_looked_at: int = 0
    prompts_cut: int = 0
    """Of those: an early change cut off their prefix."""
    templates: list[TemplateFact] = field(default_factory=list)
    """Published versions."""
    canaries: list[CanaryResult] = field(default_factory=list)
    """The newest of each worker and endpoint."""

    def open_of(self, *kinds: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.kind in kinds]


def read_facts(*, now: datetime) -> Facts:
    rows = Worker.objects.select_related("pool", "status").filter(state=Worker.State.READY)
    workers = list(rows)
    looked, cut = _breaks(now)
    span = Scope(now - TRAFFIC, now)
    return Facts(
        now=now,
        findings=list(Finding.objects.filter(resolved_at=None).order_by("-last_seen")[:FINDINGS_READ_MAX]),
        workers=[_worker(worker, now) for worker in workers],
        pools=_pools(workers),
        requests=_sums(span, now),
        decisions=_decisions(now),
        hot=hot_prefixes(span, limit=HOT_READ, now=now),
        prompts_looked_at=looked,
        prompts_cut=cut,
        templates=_templates(),
        canaries=list(CanaryResult.objects.filter(newest=True).select_related("worker__pool")[:CANARIES_READ_MAX]),
    )


def _worker(worker: Worker, now: datetime) -> WorkerFact:
    status = getattr(worker, "status", None)
    block_size = worker.facts.get("block_size")
    kv_state = "unknown"
    if status is not None and status.kv_at is not None and now - status.kv_at <= KV_HEARD_WITHIN:
        kv_state = str(status.kv.get("state", "unknown"))
    return WorkerFact(
        worker_id=worker.worker_id,
        pool=worker.pool.slug,
        health=health_of(status, now) if status else "unknown",
        waiting=status.reading.get("waiting") if status else None,
        kv_state=kv_state if worker.kv_events_endpoint else "",
        block_size=block_size if isinstance(block_size, int) else None,
    )


def _pools(workers: list[Worker]) -> list[PoolFact]:
    found = {worker.pool.slug: worker.pool for worker in workers}
    return [
        PoolFact(
            slug=slug,
            routing=pool.routing,
            block_size=pool.block_size,
            tokenizer=pool.tokenizer,
            has_connector=pool.kv_bytes_per_token is not None,
            transfer_gib_per_s=pool.transfer_gib_per_s,
        )
        for slug, pool in sorted(found.items())
    ]


def _sums(scope: Scope, now: datetime) -> Values:
    total: Values = {}
    span, _ = aligned_pair(scope, now=now)
    for _, values in request_rows(scope, cover(span, now=now), REQUEST_FIELDS, presence=False):
        merge_into(REQUESTS, total, values)
    return total


def _decisions(now: datetime) -> list[Mapping[str, Any]]:
    rows = DecisionRecord.objects.filter(at__gte=now - DECISIONS_WITHIN).order_by("-at")
    return list(rows.values_list("detail", flat=True)[:DECISIONS_READ])


def _breaks(now: datetime) -> tuple[int, int]:
    rows = PrefixBreakRollup.objects.filter(last_at__gte=now - WINDOW)
    found = rows.aggregate(looked=Sum("prompts", filter=Q(kind="")), cut=Sum("prompts", filter=~Q(kind="")))
    return found["looked"] or 0, found["cut"] or 0


def _templates() -> list[TemplateFact]:
    published = PromptTemplateVersion.objects.filter(status=PromptTemplateVersion.VersionStatus.PUBLISHED)
    rows = published.order_by().annotate(
        golden_count=Count("goldens"), fault_count=Count("goldens", filter=~Q(goldens__fault=""))
    )
    values = rows.values_list(
        "template__tenant__slug", "template__slug", "version", "accepted_lints", "golden_count", "fault_count"
    )
    return [
        TemplateFact(f"{tenant}/{slug}@{version}", tuple(lints), goldens, faults)
        for tenant, slug, version, lints, goldens, faults in values
    ]
