"""The measures' values at a moment, read for many rules at once: what several rules ask is read once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Sum

from controlplane.alerts.judging import Reading
from controlplane.alerts.measures import SAMPLES_MIN
from controlplane.alerts.models import AlertRule
from controlplane.deadletters.models import TaskDelivery
from controlplane.fleet.models import Finding, Worker
from controlplane.isolation.models import IsolationViolation
from controlplane.isolation.services import FINDING_KIND
from controlplane.snapshots.models import RouterStatus
from controlplane.snapshots.selectors import last_seen
from controlplane.telemetry.merge import REQUESTS, Values, merge_into
from controlplane.telemetry.models import RequestRollup, WorkerRollup
from controlplane.telemetry.rollup_rows import quantile_of, request_rows, segments_q
from controlplane.telemetry.sources import last_words
from controlplane.telemetry.windows import Scope, aligned_pair, cover
from controlplane.tenants.models import Tenant

FLEET = "fleet"
POLLERS_STILL_AFTER_S = 30.0
"""No worker was polled for so long: then it is the pollers that are silent."""
ROUTERS_EXPECTED_FOR = timedelta(days=1)
"""A router silent for longer was taken away."""
OUR_ERRORS = frozenset({"no_worker", "upstream_error", "upstream_timeout", "upstream_died", "internal"})
"""Of `router.contract.telemetry.ERROR_KINDS`; the others are the client's."""
TTFT_FIELDS = ("ttft_hit", "ttft_partial", "ttft_miss", "ttft_unknown")
REQUEST_FIELDS = (
    "requests", "errors", "prompt_tokens", "hit_tokens", "hit_known", "hit_prompt_tokens", "slo_met", "slo_known",
    "isolation_checked", "isolation_unknown",
)  # fmt: skip


@dataclass
class Reader:
    """Reads of one evaluation. Never kept beyond it."""

    now: datetime
    _kept: dict[Any, Any] = field(default_factory=dict)

    def readings(self, rule: AlertRule) -> list[Reading]:
        return READERS[rule.measure](self, rule)

    def once[Answer](self, key: Any, read: Callable[[], Answer]) -> Answer:
        if key not in self._kept:
            self._kept[key] = read()
        answer: Answer = self._kept[key]
        return answer

    def sums(self, rule: AlertRule, *, with_ttft: bool = False) -> Values:
        """Requests of the rule's scope in its window, added up; {} where nothing was."""
        key = ("requests", rule.window_s, rule.tenant, rule.pool, with_ttft)
        fields = TTFT_FIELDS if with_ttft else REQUEST_FIELDS
        return self.once(key, lambda: self._sums(rule, fields))

    def _sums(self, rule: AlertRule, fields: tuple[str, ...]) -> Values:
        scope = Scope(self.now - timedelta(seconds=rule.window_s), self.now, tenant=rule.tenant, pool=rule.pool)
        span, _ = aligned_pair(scope, now=self.now)
        total: Values = {}
        for _, values in request_rows(scope, cover(span, now=self.now), fields, presence=False):
            merge_into(REQUESTS, total, values)
        return total

    def workers(self) -> list[Worker]:
        """Those that should serve."""
        rows = Worker.objects.select_related("pool", "status").exclude(state=Worker.State.MAINTENANCE)
        return self.once("workers", lambda: list(rows))

    def worker_sums(self, window_s: int) -> dict[str, dict[str, float]]:
        return self.once(("workers", window_s), lambda: self._worker_sums(window_s))

    def _worker_sums(self, window_s: int) -> dict[str, dict[str, float]]:
        scope = Scope(self.now - timedelta(seconds=window_s), self.now)
        rows = WorkerRollup.objects.filter(segments_q(cover(aligned_pair(scope, now=self.now)[0], now=self.now)))
        fields = ("kv_samples", "event_gaps", "kv_use_sum", "kv_use_samples")
        sums = rows.order_by().values_list("worker").annotate(*(Sum(name) for name in fields))
        return {worker: dict(zip(fields, values, strict=True)) for worker, *values in sums}


def _of_scope(rule: AlertRule, value: float | None, reason: str = "") -> list[Reading]:
    subject = rule.tenant or rule.pool or FLEET
    return [Reading(subject, value, "" if value is not None else reason, rule.tenant, rule.pool)]


def _share(part: str, whole: str, counted: str, what: str) -> Callable[[Reader, AlertRule], list[Reading]]:
    def read(reader: Reader, rule: AlertRule) -> list[Reading]:
        sums = reader.sums(rule)
        enough = sums.get(counted, 0) >= SAMPLES_MIN and sums.get(whole, 0)
        value = sums.get(part, 0) / sums[whole] if enough else None
        return _of_scope(rule, value, f"{sums.get(counted, 0)} {what} in the window; {SAMPLES_MIN} are needed.")

    return read


def _ttft(reader: Reader, rule: AlertRule) -> list[Reading]:
    sums = reader.sums(rule, with_ttft=True)
    buckets: dict[str, int] = defaultdict(int)
    for name in TTFT_FIELDS:
        for index, count in sums.get(name, {}).items():
            buckets[index] += count
    count = sum(buckets.values())
    value = quantile_of(buckets, 0.95) if count >= SAMPLES_MIN else None
    return _of_scope(rule, value, f"{count} first tokens in the window; {SAMPLES_MIN} are needed.")


def _errors(reader: Reader, rule: AlertRule) -> list[Reading]:
    sums = reader.sums(rule)
    requests = sums.get("requests", 0)
    failed = sum(count for kind, count in sums.get("errors", {}).items() if kind in OUR_ERRORS)
    value = failed / requests if requests >= SAMPLES_MIN else None
    return _of_scope(rule, value, f"{requests} requests in the window; {SAMPLES_MIN} are needed.")


def _violations(reader: Reader, rule: AlertRule) -> list[Reading]:
    rows = IsolationViolation.objects.all()
    for name in ("tenant", "pool"):
        if getattr(rule, name):
            rows = rows.filter(**{name: getattr(rule, name)})
    found = rows.filter(acknowledged_at=None).count()
    # Somebody looked at the last of them: that is known, whatever has been asked since.
    settled = not found and rows.filter(acknowledged_at__gte=reader.now - timedelta(seconds=rule.window_s)).exists()
    known = found or settled or reader.sums(rule).get("isolation_checked", 0)
    return _of_scope(rule, float(found) if known else None, "No answer was checked in the window.")


def _critical(reader: Reader, rule: AlertRule) -> list[Reading]:
    """Without those that stand for violations: they have a measure of their own."""
    rows = Finding.objects.filter(resolved_at=None, acknowledged_at=None, severity=Finding.Severity.CRITICAL)
    rows = rows.exclude(kind=FINDING_KIND)
    return _of_scope(rule, float(rows.count()))


def _workers_of(reader: Reader, rule: AlertRule) -> Iterable[Worker]:
    return (worker for worker in reader.workers() if rule.pool in ("", worker.pool.slug))


def _worker_silent(reader: Reader, rule: AlertRule) -> list[Reading]:
    polls = [worker.status.polled_at for worker in reader.workers() if getattr(worker, "status", None)]
    newest = max((at for at in polls if at is not None), default=None)
    still = newest is None or (reader.now - newest).total_seconds() > POLLERS_STILL_AFTER_S
    found = []
    for worker in _workers_of(reader, rule):
        ok_at = worker.status.ok_at if getattr(worker, "status", None) else None
        value = None if still or ok_at is None else max(0.0, (reader.now - ok_at).total_seconds())
        reason = "No worker was polled lately: look at the pollers." if still else "It never answered a poll."
        found.append(Reading(worker.worker_id, value, "" if value is not None else reason, pool=worker.pool.slug))
    return found


def _event_gaps(reader: Reader, rule: AlertRule) -> list[Reading]:
    sums = reader.worker_sums(rule.window_s)
    found = []
    for worker in _workers_of(reader, rule):
        if not worker.kv_events_endpoint:
            continue
        own = sums.get(worker.worker_id, {})
        value = float(own["event_gaps"]) if own.get("kv_samples") else None
        reason = "" if value is not None else "Its KV events were not heard in the window."
        found.append(Reading(worker.worker_id, value, reason, pool=worker.pool.slug))
    return found


def _kv_use(reader: Reader, rule: AlertRule) -> list[Reading]:
    sums = reader.worker_sums(rule.window_s)
    found = []
    for worker in _workers_of(reader, rule):
        own = sums.get(worker.worker_id, {})
        value = own["kv_use_sum"] / own["kv_use_samples"] if own.get("kv_use_samples") else None
        reason = "" if value is not None else "It was not polled in the window."
        found.append(Reading(worker.worker_id, value, reason, pool=worker.pool.slug))
    return found


def _budgets(reader: Reader, rule: AlertRule) -> list[Reading]:
    """A budget holds on each router: the fleet's is that of all routers that report."""
    tenants = Tenant.objects.filter(prefill_tokens_per_s__isnull=False, status="active")
    rows = tenants.filter(slug=rule.tenant) if rule.tenant else tenants
    budgets = {slug: rate for slug, rate in rows.values_list("slug", "prefill_tokens_per_s") if rate}
    if not budgets:
        return []
    routers = len(reader.once("words", lambda: last_words(reader.now)))
    used = reader.once(("uncached", rule.window_s), lambda: _uncached_by_tenant(reader, rule.window_s))
    found = []
    for tenant, budget in budgets.items():
        value = used.get(tenant, 0.0) / (budget * routers) if routers else None
        reason = "" if routers else "No router reported in the last ten minutes."
        found.append(Reading(tenant, value, reason, tenant=tenant))
    return found


def _uncached_by_tenant(reader: Reader, window_s: int) -> dict[str, float]:
    """Uncached prompt tokens a second."""
    scope = Scope(reader.now - timedelta(seconds=window_s), reader.now)
    span, _ = aligned_pair(scope, now=reader.now)
    rows = RequestRollup.objects.filter(segments_q(cover(span, now=reader.now))).order_by()
    sums = rows.values_list("tenant").annotate(Sum("prompt_tokens"), Sum("hit_tokens"))
    return {tenant: max(0, prompt - hit) / window_s for tenant, prompt, hit in sums}


def _router_silent(reader: Reader, rule: AlertRule) -> list[Reading]:
    """By its polls, and by what it leaves in Valkey while it cannot poll."""
    rows = RouterStatus.objects.filter(seen_at__gte=reader.now - ROUTERS_EXPECTED_FOR)
    seen = dict(rows.values_list("router_id", "seen_at"))
    for router, at in last_seen(reader.now).items():
        seen[router] = max(at, seen.get(router, at))
    found = [Reading(router, max(0.0, (reader.now - at).total_seconds())) for router, at in sorted(seen.items())]
    return found or [Reading(FLEET, None, "No router asked for its policy within the last day.")]


def _given_up(reader: Reader, rule: AlertRule) -> list[Reading]:
    return _of_scope(rule, float(TaskDelivery.objects.filter(dead_at__isnull=False).count()))


READERS: dict[str, Callable[[Reader, AlertRule], list[Reading]]] = {
    "hit_share": _share("hit_tokens", "hit_prompt_tokens", "hit_known", "requests with known cached tokens"),
    "ttft_p95_ms": _ttft,
    "goodput_share": _share("slo_met", "slo_known", "slo_known", "requests with an objective"),
    "error_share": _errors,
    "violations": _violations,
    "critical_findings": _critical,
    "worker_silent_s": _worker_silent,
    "event_gaps": _event_gaps,
    "kv_use": _kv_use,
    "budget_use": _budgets,
    "router_silent_s": _router_silent,
    "work_given_up": _given_up,
}
