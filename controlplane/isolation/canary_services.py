"""Running the canaries of a worker, storing what they said, and the findings that follow (S7)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from controlplane.audit.services import record
from controlplane.errors import Conflict, NotFound
from controlplane.fleet.findings import Observation, observe, resolve
from controlplane.fleet.guarding import proof_maker
from controlplane.fleet.models import Finding, Worker
from controlplane.isolation.canary import GREEN, INCONCLUSIVE, RED
from controlplane.isolation.canary_run import TELLS_NO_USAGE, Outcome, Subject, run_canaries
from controlplane.isolation.models import CanaryResult

LEAKS = "canary_leaks"
INCONCLUSIVE_KIND = "canary_inconclusive"
KEPT_FOR = timedelta(days=30)


def run_for(worker_pk: int) -> list[CanaryResult]:
    """Asks the worker over every endpoint (up to canary_run.TOTAL_S) and stores the results; none when it is gone."""
    worker = Worker.objects.select_related("pool").filter(pk=worker_pk).first()
    model = worker.pool.models.order_by("name").first() if worker is not None else None
    if worker is None or model is None:
        return []
    subject = Subject(worker.url, model.name, worker.pool.block_size, worker.pool.guarded)
    outcomes = run_canaries(
        subject,
        networks=settings.CONFIG.worker_networks,
        api_key=settings.CONFIG.worker_api_key,
        proof_of=proof_maker(worker.pool),
    )
    return _store(worker_pk, model.name, outcomes, at=timezone.now())


def run_by_hand(worker_id: str, *, actor: str, request_id: str = "") -> list[CanaryResult]:
    """Raises NotFound, or Conflict for a worker whose pool serves no model. Audited: it sends requests to a worker."""
    pool, _, slug = worker_id.partition("/")
    worker = Worker.objects.select_related("pool").filter(pool__slug=pool, slug=slug).first()
    if worker is None:
        raise NotFound(f"There is no worker {worker_id!r}.")
    results = run_for(worker.pk)
    if not results:
        raise Conflict("The worker's pool serves no model: there is nothing to ask.")
    with transaction.atomic():
        record(
            actor=actor, action="worker.canary", object_type="worker", object_id=worker_id, before=None,
            after={result.endpoint: result.verdict for result in results}, affects_routing=False, request_id=request_id,
        )  # fmt: skip
    return results


@transaction.atomic
def _store(worker_pk: int, model: str, outcomes: Sequence[Outcome], *, at: datetime) -> list[CanaryResult]:
    worker = Worker.objects.select_related("pool").select_for_update(of=("self",)).filter(pk=worker_pk).first()
    if worker is None:
        return []
    names = [outcome.endpoint for outcome in outcomes]
    CanaryResult.objects.filter(worker=worker, endpoint__in=names, newest=True).update(newest=False)
    rows = CanaryResult.objects.bulk_create([_row(worker, model, outcome, at) for outcome in outcomes])
    _note_findings(worker, rows, at=at)
    return rows


def _row(worker: Worker, model: str, outcome: Outcome, at: datetime) -> CanaryResult:
    legs, judgement = outcome.legs, outcome.judgement
    return CanaryResult(
        worker=worker,
        endpoint=outcome.endpoint,
        model=model,
        checked_at=at,
        verdict=judgement.verdict,
        reason=judgement.reason[:300],
        prompt_tokens=legs.prime.prompt_tokens,
        prime_cached=legs.prime.cached,
        foreign_cached=legs.foreign.cached,
        own_cached=legs.own.cached,
        unsalted_cached=legs.unsalted.cached,
        duration_ms=outcome.duration_ms,
    )


def _note_findings(worker: Worker, rows: Sequence[CanaryResult], *, at: datetime) -> None:
    found, cured = [], []
    leaking = _leaking(worker)
    if leaking:
        found.append(Observation(LEAKS, worker.worker_id, _words(leaking), Finding.Severity.CRITICAL))
    else:
        cured.append(LEAKS)
    # A busy worker's counters say nothing most of the time: the matrix shows that, no finding does.
    unsure = [row for row in rows if row.verdict == INCONCLUSIVE and row.endpoint not in TELLS_NO_USAGE]
    if unsure:
        found.append(Observation(INCONCLUSIVE_KIND, worker.worker_id, _words(unsure), Finding.Severity.WARNING))
    else:
        cured.append(INCONCLUSIVE_KIND)
    observe(found, at=at)
    resolve([worker.worker_id], cured, at=at)


def _leaking(worker: Worker) -> list[CanaryResult]:
    """Endpoints whose last green or red word was red: what is inconclusive afterwards is no proof of a cure."""
    told = CanaryResult.objects.filter(worker=worker, verdict__in=(GREEN, RED)).order_by()
    last = told.values("endpoint").annotate(last=Max("pk")).values("last")
    return list(CanaryResult.objects.filter(pk__in=last, verdict=RED))


def _words(rows: Sequence[CanaryResult]) -> str:
    return "; ".join(f"{row.endpoint}: {row.reason}" for row in rows)


def forget_old(*, now: datetime, rows_max: int = 5_000) -> int:
    """Deletes results past KEPT_FOR, except the newest of each worker and endpoint. How many."""
    doomed = CanaryResult.objects.filter(checked_at__lt=now - KEPT_FOR, newest=False).order_by("pk")
    deleted, _ = CanaryResult.objects.filter(pk__in=list(doomed.values_list("pk", flat=True)[:rows_max])).delete()
    return deleted
