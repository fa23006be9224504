"""Writes what a shard of polls saw: status, facts, findings and, through the sinks, rollups. One transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from django.db import transaction

from controlplane.fleet.deltas import Base
from controlplane.fleet.findings import Observation, observe, resolve, resolve_past_events
from controlplane.fleet.guarding import proof_maker
from controlplane.fleet.models import Finding, Worker, WorkerStatus
from controlplane.fleet.poll import PollOutcome, Target
from controlplane.fleet.poll_sinks import hand_over
from router.contract.guard import NO_SALT

FAILURES_BEFORE_FINDING = 3
"""One lost poll is no news; three are 6 s without a word."""
STATUS_FIELDS = ("polled_at", "ok_at", "error", "consecutive_failures", "reading", "counters", "scrape_ms")
"""What polls write of WorkerStatus; the KV fields belong to the ingester."""
SERIES_NEEDED = ("running", "waiting", "kv_use")
COUNTERS_NEEDED = ("prefix_query_tokens", "prefix_hit_tokens", "prompt_tokens")
CONDITION_KINDS = ("poll_failed", "metrics_garbage", "metrics_missing", "series_missing", "block_size_mismatch",
                   "caching_off")  # fmt: skip


def load_targets(worker_pks: Sequence[int]) -> list[Target]:
    """The workers with the counters of their last good poll. Two queries, and one for each guarded pool."""
    workers = Worker.objects.select_related("pool").filter(pk__in=worker_pks).order_by("pk")
    statuses = {status.worker_id: status for status in WorkerStatus.objects.filter(worker_id__in=worker_pks)}
    guarded = {worker.pool_id: worker.pool for worker in workers if worker.pool.guarded}
    told = {pool_id: proof_maker(pool)(NO_SALT) for pool_id, pool in guarded.items()}
    return [_target(worker, statuses.get(worker.pk), told.get(worker.pool_id, "")) for worker in workers]


def _target(worker: Worker, status: WorkerStatus | None, proof: str) -> Target:
    stored = status.counters if status else {}
    base = None
    if stored.get("values"):
        base = Base(at=stored["at"], counters=stored["values"], started_at=stored.get("started_at"))
    return Target(
        pk=worker.pk,
        worker_id=worker.worker_id,
        url=worker.url,
        dcgm_url=worker.dcgm_url,
        block_size=worker.pool.block_size,
        base=base,
        filtered=stored.get("filtered") if stored.get("url") == worker.url else None,
        proof=proof,
    )


def store(outcomes: Sequence[PollOutcome], *, at: datetime) -> None:
    """Everything of one shard, or nothing. Workers deleted meanwhile are left out."""
    with transaction.atomic():
        workers = {worker.pk: worker for worker in Worker.objects.filter(pk__in=[o.target.pk for o in outcomes])}
        present = [outcome for outcome in outcomes if outcome.target.pk in workers]
        failures = _store_status(present)
        _store_facts(present, workers)
        _store_findings(present, failures, at)
        hand_over(present)


def _store_status(outcomes: Sequence[PollOutcome]) -> dict[str, int]:
    """Consecutive failures by worker id, this poll included."""
    known = {row.worker_id: row for row in WorkerStatus.objects.filter(worker_id__in=[o.target.pk for o in outcomes])}
    rows = []
    for outcome in outcomes:
        row = known.get(outcome.target.pk) or WorkerStatus(worker_id=outcome.target.pk)
        _fill_status(row, outcome)
        rows.append(row)
    WorkerStatus.objects.bulk_create(
        [_without_pk(row) for row in rows],
        update_conflicts=True,
        unique_fields=["worker"],
        update_fields=STATUS_FIELDS,
    )
    return {outcome.target.worker_id: row.consecutive_failures for outcome, row in zip(outcomes, rows, strict=True)}


def _without_pk(row: WorkerStatus) -> WorkerStatus:
    """The upsert goes by worker; a primary key beside it would be a second conflict target."""
    values = {
        field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields if not field.primary_key
    }
    return WorkerStatus(**values)


def _fill_status(row: WorkerStatus, outcome: PollOutcome) -> None:
    row.polled_at = datetime.fromtimestamp(outcome.at, UTC)
    row.error = outcome.error[:300]
    if outcome.reading is None:
        row.consecutive_failures += 1
        return
    row.ok_at = row.polled_at
    row.consecutive_failures = 0
    row.scrape_ms = outcome.scrape_ms
    row.reading = _gauges(outcome)
    row.counters = {
        "at": outcome.at,
        "url": outcome.target.url,
        "started_at": outcome.reading.started_at,
        "filtered": outcome.filtered,
        "values": outcome.reading.counters,
    }


def _gauges(outcome: PollOutcome) -> dict[str, object]:
    reading = outcome.reading
    assert reading is not None
    gauges: dict[str, object] = {
        name: value for name in ("running", "waiting", "kv_use", "started_at")
        if (value := getattr(reading, name)) is not None
    }  # fmt: skip
    if reading.waiting_by_reason:
        gauges["waiting_by_reason"] = reading.waiting_by_reason
    if outcome.gpu is not None:
        gauges["gpu"] = outcome.gpu.as_json()
    return gauges


def _store_facts(outcomes: Sequence[PollOutcome], workers: dict[int, Worker]) -> None:
    """What the page says of the worker's configuration; observed, not decided, so no audit entry."""
    for outcome in outcomes:
        worker = workers[outcome.target.pk]
        if outcome.reading is None or outcome.reading.facts.items() <= worker.facts.items():
            continue
        Worker.objects.filter(pk=worker.pk).update(facts={**worker.facts, **outcome.reading.facts})


def _store_findings(outcomes: Sequence[PollOutcome], failures: dict[str, int], at: datetime) -> None:
    observations = [item for outcome in outcomes for item in observations_of(outcome, failures)]
    observe(observations, at=at)
    holding = {(item.kind, item.subject) for item in observations}
    for kind in CONDITION_KINDS:
        cleared = [
            outcome.target.worker_id for outcome in outcomes
            if outcome.ok and (kind, outcome.target.worker_id) not in holding and _tells(outcome, kind)
        ]  # fmt: skip
        if cleared:
            resolve(cleared, [kind], at=at)
    resolve_past_events(at=at)


def _tells(outcome: PollOutcome, kind: str) -> bool:
    """Whether a good poll without such an observation disproves the finding: silence about a fact does not."""
    assert outcome.reading is not None
    needed = {"block_size_mismatch": "block_size", "caching_off": "prefix_caching"}.get(kind)
    return needed is None or needed in outcome.reading.facts


def observations_of(outcome: PollOutcome, failures: dict[str, int]) -> list[Observation]:
    """What one poll shows that an operator should know. Pure."""
    worker = outcome.target.worker_id
    if outcome.reading is None:
        return _failure_observations(outcome, failures.get(worker, 0))
    found = [*_reset_observations(outcome), *_page_observations(outcome)]
    if outcome.gpu is not None and outcome.gpu.xid:
        message = f"The GPU reports Xid error {outcome.gpu.xid}: see NVIDIA's Xid catalogue, then drain the worker."
        found.append(Observation("xid_error", worker, message, Finding.Severity.CRITICAL))
    return found


def _failure_observations(outcome: PollOutcome, failures: int) -> list[Observation]:
    worker = outcome.target.worker_id
    found = []
    if outcome.error_kind in ("garbage", "too_large", "not_text"):
        found.append(Observation("metrics_garbage", worker, f"The metrics page was rejected: {outcome.error}"))
    if failures >= FAILURES_BEFORE_FINDING:
        found.append(
            Observation("poll_failed", worker, f"{failures} polls in a row failed: {outcome.error}",
                        Finding.Severity.CRITICAL)
        )  # fmt: skip
    return found


def _reset_observations(outcome: PollOutcome) -> list[Observation]:
    worker = outcome.target.worker_id
    if outcome.increases.restarted:
        return [Observation("worker_restarted", worker, "The worker has restarted: its cache began empty.")]
    if outcome.increases.reset:
        return [Observation("counter_reset", worker, "A counter fell without a restart: no increase is counted.")]
    return []


def _page_observations(outcome: PollOutcome) -> list[Observation]:
    reading, worker = outcome.reading, outcome.target.worker_id
    assert reading is not None
    if reading.metrics_missing:
        message = "The page has no vllm: series: start the worker without --disable-log-stats. Its figures are unknown."
        return [Observation("metrics_missing", worker, message)]
    found = []
    if reading.bad_samples:
        message = f"{reading.bad_samples} samples were unreadable, NaN or out of range; those figures are unknown."
        found.append(Observation("metrics_garbage", worker, message))
    missing = [name for name in SERIES_NEEDED if getattr(reading, name) is None]
    missing += [name for name in COUNTERS_NEEDED if name not in reading.counters]
    if missing and not reading.bad_samples:
        found.append(Observation("series_missing", worker, f"The page lacks {', '.join(missing)} under any spelling."))
    size = reading.facts.get("block_size")
    if size is not None and size != outcome.target.block_size:
        message = f"Block size {size}, but the pool says {outcome.target.block_size}: prefixes will not match blocks."
        found.append(Observation("block_size_mismatch", worker, message))
    if reading.facts.get("prefix_caching") is False:
        found.append(Observation("caching_off", worker, "Prefix caching is off: nothing can be reused here."))
    return found
