"""Writes what a shard of polls saw: status, facts, findings and, through the sinks, rollups. One transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django.db import transaction

from controlplane.fleet.deltas import Base
from controlplane.fleet.findings import Observation, observe, resolve
from controlplane.fleet.guarding import proof_maker
from controlplane.fleet.models import Finding, Worker, WorkerPool, WorkerStatus
from controlplane.fleet.poll import PollOutcome, Target
from controlplane.fleet.poll_sinks import hand_over
from controlplane.row_sets import RowSet
from router.contract.guard import NO_SALT

FAILURES_BEFORE_FINDING = 3
"""One lost poll is no news; three are 6 s without a word."""
# The KV fields of a status belong to the ingester; a failed poll leaves the last good figures as they are.
_GOOD = RowSet(
    WorkerStatus,
    ("worker",),
    ("polled_at", "ok_at", "error", "consecutive_failures", "reading", "counters", "scrape_ms"),
    also_inserted={"kv": {}},
)
_FAILED = RowSet(
    WorkerStatus,
    ("worker",),
    ("polled_at", "error", "consecutive_failures"),
    also_inserted={"reading": {}, "counters": {}, "kv": {}},
)
_FAILURES = RowSet(WorkerStatus, ("worker",), ("consecutive_failures",))
SERIES_NEEDED = ("running", "waiting", "kv_use")
COUNTERS_NEEDED = ("prefix_query_tokens", "prefix_hit_tokens", "prompt_tokens")
CONDITION_KINDS = ("poll_failed", "metrics_garbage", "metrics_missing", "series_missing", "block_size_mismatch",
                   "caching_off")  # fmt: skip


_TARGET_FIELDS = (
    "pk", "slug", "url", "dcgm_url", "pool_id", "pool__slug", "pool__block_size", "pool__guarded", "status__counters",
)  # fmt: skip


def load_targets(worker_pks: Sequence[int]) -> list[Target]:
    """The workers with the counters of their last good poll. A query, and two for each guarded pool."""
    rows = list(Worker.objects.filter(pk__in=worker_pks).order_by("pk").values(*_TARGET_FIELDS))
    guarded = {row["pool_id"] for row in rows if row["pool__guarded"]}
    told = {pk: proof_maker(WorkerPool.objects.get(pk=pk))(NO_SALT) for pk in guarded}
    return [_target(row, told.get(row["pool_id"], "")) for row in rows]


def _target(row: Mapping[str, Any], proof: str) -> Target:
    stored = row["status__counters"] or {}
    base = None
    if stored.get("values"):
        base = Base(at=stored["at"], counters=stored["values"], started_at=stored.get("started_at"))
    return Target(
        pk=row["pk"],
        worker_id=f"{row['pool__slug']}/{row['slug']}",
        url=row["url"],
        dcgm_url=row["dcgm_url"],
        block_size=row["pool__block_size"],
        base=base,
        filtered=stored.get("filtered") if stored.get("url") == row["url"] else None,
        proof=proof,
    )


def store(outcomes: Sequence[PollOutcome], *, at: datetime) -> None:
    """Everything of one shard, or nothing. Workers deleted meanwhile are left out."""
    with transaction.atomic():
        pks = [outcome.target.pk for outcome in outcomes]
        facts = dict(Worker.objects.filter(pk__in=pks).values_list("pk", "facts"))
        present = [outcome for outcome in outcomes if outcome.target.pk in facts]
        failures = _store_status(present)
        _store_facts(present, facts)
        _store_findings(present, failures, at)
        hand_over(present)


def _store_status(outcomes: Sequence[PollOutcome]) -> dict[str, int]:
    """Consecutive failures by worker id, this poll included; a worker whose poll was good is not named."""
    _GOOD.upsert([((outcome.target.pk,), _good_status(outcome)) for outcome in outcomes if outcome.ok])
    failed = [outcome for outcome in outcomes if not outcome.ok]
    before = _FAILURES.read([(outcome.target.pk,) for outcome in failed])
    rows, failures = [], {}
    for outcome in failed:
        key = (outcome.target.pk,)
        count = failures[outcome.target.worker_id] = (
            before.get(key, {"consecutive_failures": 0})["consecutive_failures"] + 1
        )
        told = {"polled_at": _time(outcome.at), "error": outcome.error[:300], "consecutive_failures": count}
        rows.append((key, told))
    _FAILED.upsert(rows)
    return failures


def _good_status(outcome: PollOutcome) -> dict[str, object]:
    assert outcome.reading is not None
    counters = {
        "at": outcome.at,
        "url": outcome.target.url,
        "started_at": outcome.reading.started_at,
        "filtered": outcome.filtered,
        "values": outcome.reading.counters,
    }
    at = _time(outcome.at)
    return {"polled_at": at, "ok_at": at, "scrape_ms": outcome.scrape_ms, "reading": _gauges(outcome),
            "counters": counters}  # fmt: skip


def _time(unix_s: float) -> datetime:
    return datetime.fromtimestamp(unix_s, UTC)


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


def _store_facts(outcomes: Sequence[PollOutcome], facts: Mapping[int, Mapping[str, object]]) -> None:
    """What the page says of the worker's configuration; observed, not decided, so no audit entry."""
    for outcome in outcomes:
        known = facts[outcome.target.pk]
        if outcome.reading is not None and not outcome.reading.facts.items() <= known.items():
            Worker.objects.filter(pk=outcome.target.pk).update(facts={**known, **outcome.reading.facts})


def _store_findings(outcomes: Sequence[PollOutcome], failures: dict[str, int], at: datetime) -> None:
    """One query where nothing is amiss."""
    observations = [item for outcome in outcomes for item in observations_of(outcome, failures)]
    observe(observations, at=at)
    holding = {(item.kind, item.subject) for item in observations}
    good = {outcome.target.worker_id: outcome for outcome in outcomes if outcome.ok}
    standing = Finding.objects.filter(subject__in=list(good), kind__in=CONDITION_KINDS, resolved_at=None)
    for kind, subject in standing.values_list("kind", "subject"):
        if (kind, subject) not in holding and _tells(good[subject], kind):
            resolve([subject], [kind], at=at)


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
