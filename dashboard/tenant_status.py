"""One tenant's status: is it served well, does its caching pay, what is wrong, what changed. Its own things only:
no other tenant, no worker's name or address.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q
from django.http import Http404

from controlplane.audit.models import AuditEntry
from controlplane.fleet.models import Finding
from controlplane.isolation.services import FINDING_OF
from controlplane.namespaces.change_log import about
from controlplane.namespaces.models import CacheNamespace
from controlplane.telemetry.breaks import BREAKER_KIND
from controlplane.telemetry.tenant_use import Use, total_use, use_by_namespace
from controlplane.telemetry.windows import Scope
from controlplane.tenants.models import Status, Tenant
from dashboard import numbers
from dashboard.access import NO_TENANT
from dashboard.charts.base import closed
from dashboard.data import PageData
from dashboard.freshness import STALE_AFTER_S
from dashboard.tiles import Part, Tile, Verdict, spark

FAILED_WARN, FAILED_CRIT = 0.01, 0.05
"""Shares of failed requests from which a tenant is told."""
GOODPUT_WARN, GOODPUT_CRIT = 0.95, 0.9
"""As on the fleet page."""
FINDINGS_SHOWN = 20
CHANGES_SHOWN = 15
ABOUT_NAMESPACES = (*FINDING_OF.values(), BREAKER_KIND)


@dataclass(frozen=True, slots=True)
class TenantSeen:
    row: Tenant
    namespaces: list[CacheNamespace]

    @property
    def objectives_ms(self) -> list[float]:
        """Distinct TTFT objectives of its namespaces, ascending."""
        return sorted({row.ttft_slo_ms for row in self.namespaces if row.ttft_slo_ms is not None})


def tenant_seen(scope: Scope, *, now: datetime) -> TenantSeen | None:
    """None when the scope names no tenant that exists. Two queries."""
    row = Tenant.objects.filter(slug=scope.tenant).first()
    return TenantSeen(row, list(row.namespaces.select_related("tenant").order_by("slug"))) if row else None


def seen_of(data: PageData) -> TenantSeen:
    """Raises Http404 when the page's scope names no tenant that exists."""
    found = data.ask(tenant_seen)
    if found is None:
        raise Http404(NO_TENANT)
    return found


def tenant_findings(scope: Scope, *, now: datetime) -> list[Finding]:
    """Open findings about the tenant's namespaces and templates, newest first. A pool may have a tenant's name, so
    that a worker's finding is told by its kind, not by its subject."""
    own = Q(subject__startswith=f"{scope.tenant}/")
    concern = Q(kind__in=ABOUT_NAMESPACES) | Q(subject__contains="@")
    return list(Finding.objects.filter(own & concern, resolved_at=None).order_by("-last_seen")[:FINDINGS_SHOWN])


def tenant_changes(scope: Scope, *, now: datetime) -> list[AuditEntry]:
    """The latest entries of the audit log about the tenant, newest first."""
    return list(AuditEntry.objects.filter(about([scope.tenant]))[:CHANGES_SHOWN])


def total_of(data: PageData) -> Use | None:
    """Of the whole tenant; None without traffic in the range."""
    uses = data.ask(use_by_namespace)
    return total_use(uses.values()) if uses else None


def verdict_of(data: PageData) -> Verdict:
    """The first thing that the tenant's people read."""
    level, title = _health(data)
    return Verdict(level=level, title=title, sentence=_payoff(data))


def _health(data: PageData) -> tuple[str, str]:
    seen, use = seen_of(data), total_of(data)
    if seen.row.status != Status.ACTIVE:
        return "crit", f"{seen.row.slug} is {seen.row.status}: its requests are refused"
    critical = sum(finding.severity == Finding.Severity.CRITICAL for finding in data.ask(tenant_findings))
    if critical:
        return "crit", f"{critical} critical {'finding' if critical == 1 else 'findings'}"
    if data.state.live and not _reported_lately(data):
        return "unknown", "No router has reported lately: these figures are old"
    if use is None or not use.requests:
        return "unknown", "No request in this range"
    return _served(use)


def _served(use: Use) -> tuple[str, str]:
    failed = use.failed / max(use.requests, use.failed)
    if failed >= FAILED_CRIT:
        return "crit", f"{numbers.percent(failed)} of requests failed or were refused"
    goodput = use.goodput_share
    if goodput is not None and goodput < GOODPUT_CRIT:
        return "crit", f"{numbers.percent(1 - goodput)} of answers missed their objective"
    if failed >= FAILED_WARN:
        return "warn", f"Serving; {numbers.percent(failed)} of requests failed or were refused"
    if goodput is not None and goodput < GOODPUT_WARN:
        return "warn", f"Serving; {numbers.percent(1 - goodput)} of answers missed their objective"
    return "ok", "Served well"


def _reported_lately(data: PageData) -> bool:
    ages = [source.age_s for source in data.freshness if source.kind == "router" and source.age_s is not None]
    return bool(ages) and min(ages) <= STALE_AFTER_S


def _payoff(data: PageData) -> str:
    use = total_of(data)
    if use is None or use.hit_share is None:
        return "Whether caching pays is unknown: no request with known cached tokens in this range."
    return f"Caching served {numbers.percent(use.hit_share)} of its prompt tokens."


def tiles_of(data: PageData) -> list[Tile]:
    use = total_of(data) or Use()
    return [_hit_share(data, use), _ttft(data, use), _goodput(data, use), _failed(data, use), _prefill(data, use)]


def _hit_share(data: PageData, use: Use) -> Tile:
    shares = [
        None if not prompt or hit is None else hit / prompt
        for hit, prompt in zip(data.hits.delivered_hit_tokens, data.hits.prompt_tokens, strict=True)
    ]
    return Tile(
        key="tenant-hit-share",
        label="Hit-token share",
        parts=[_percent(use.hit_share)],
        help="Share of prompt tokens that came from the prefix cache instead of being computed.",
        formula="delivered hit tokens ÷ prompt tokens, over requests whose worker named its cached tokens",
        href="#panel-status_hits",
        note=f"{numbers.tokens(use.hit_tokens)} tokens not computed" if use.hit_tokens else "",
        spark=spark(closed(data.hits, shares), top=1.0),
    )


def _ttft(data: PageData, use: Use) -> Tile:
    hit, miss = _range_p95(data)
    objectives = seen_of(data).objectives_ms
    words = "no objective" if not objectives else f"objective {numbers.milliseconds(objectives[0])}"
    if len(objectives) > 1:
        words = f"objectives {numbers.milliseconds(objectives[0])} to {numbers.milliseconds(objectives[-1])}"
    return Tile(
        key="tenant-ttft",
        label="TTFT hit | miss",
        parts=[_duration(hit, "hit"), _duration(miss, "miss")],
        help="Time to the first token, 95th percentile of the slowest namespace: at least half of the prompt cached "
        "against nothing cached.",
        formula="quantile of merged log-bucket histograms, error ≤ 2.5 %",
        href="#panel-status_ttft",
        note=f"p95; {words}",
        spark=spark(closed(data.ttft, data.ttft.hit_p95_ms)),
    )


def _range_p95(data: PageData) -> tuple[float | None, float | None]:
    uses = data.ask(use_by_namespace).values()
    hits = [use.ttft_hit_p95_ms for use in uses if use.ttft_hit_p95_ms is not None]
    misses = [use.ttft_miss_p95_ms for use in uses if use.ttft_miss_p95_ms is not None]
    return max(hits, default=None), max(misses, default=None)


def _goodput(data: PageData, use: Use) -> Tile:
    share = use.goodput_share
    return Tile(
        key="tenant-goodput",
        label="Within the objective",
        parts=[_percent(share)],
        help="Requests answered within their namespace's TTFT objective.",
        formula="requests within objective ÷ requests that have one; failed ones count against it",
        href="#panel-status_ttft",
        note="no namespace with an objective had traffic" if share is None else "",
        tone=_below(share, GOODPUT_WARN, GOODPUT_CRIT),
    )


def _failed(data: PageData, use: Use) -> Tile:
    share = use.failed / max(use.requests, use.failed) if use.requests or use.failed else None
    refused = f"{numbers.count(use.refused)} refused with 429" if use.refused else ""
    return Tile(
        key="tenant-failed",
        label="Failed",
        parts=[_percent(share)],
        help="Requests that ended in an error or were refused; those that the client ended itself are not counted.",
        formula="errors ÷ requests",
        href="#panel-status_namespaces",
        note=refused or f"of {numbers.count(use.requests)} requests",
        tone="" if share is None else "crit" if share >= FAILED_CRIT else "warn" if share >= FAILED_WARN else "",
    )


def _prefill(data: PageData, use: Use) -> Tile:
    limit = seen_of(data).row.prefill_tokens_per_s
    rates = computed_per_s(data)
    peak = max((rate for rate in rates if rate is not None), default=None)
    return Tile(
        key="tenant-prefill",
        label="Prefill, peak",
        parts=[Part(numbers.UNKNOWN) if peak is None else Part(numbers.tokens(peak), "tok/s")],
        help="Prompt tokens a second that had to be computed, in the busiest bucket: what the budget counts.",
        formula="(prompt tokens − delivered hit tokens) ÷ s",
        href="#panel-status_budget",
        note=f"budget {numbers.tokens(limit)} tok/s on each router" if limit else "no budget",
        tone="warn" if limit and peak is not None and peak >= limit else "",
        spark=spark(rates),
    )


def computed_per_s(data: PageData) -> list[float | None]:
    """Computed prompt tokens a second, bucket by bucket."""
    hits = data.hits
    rates = [
        None if prompt is None else max(0.0, prompt - (hit or 0.0)) / hits.step_s
        for prompt, hit in zip(hits.prompt_tokens, hits.delivered_hit_tokens, strict=True)
    ]
    return closed(hits, rates)


def _below(share: float | None, warn: float, crit: float) -> str:
    return "" if share is None else "crit" if share < crit else "warn" if share < warn else ""


def _percent(share: float | None) -> Part:
    return Part(numbers.UNKNOWN) if share is None else Part(f"{share * 100:.1f}", "%")


def _duration(value_ms: float | None, label: str) -> Part:
    text, _, unit = numbers.milliseconds(value_ms).partition(" ")
    return Part(text, unit, label=label, tone=label)
