"""Every change of pools and workers: check, save, audit, request publication; one transaction each."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models, transaction
from django.utils import timezone

from controlplane.audit.services import record
from controlplane.errors import Conflict, Invalid, NotFound, Stale
from controlplane.fleet import live_test
from controlplane.fleet.addresses import AddressRefused, check_http, check_tcp
from controlplane.fleet.guarding import proof_maker
from controlplane.fleet.models import Finding, PoolModel, Worker, WorkerPool
from controlplane.revocations.models import Revocation
from controlplane.revocations.services import retired_generation, revoke

POOL_FIELDS = (
    "name", "block_size", "routing", "virtual_nodes", "spill_outstanding", "prefill_tokens_per_s", "tokenizer",
    "kv_bytes_per_token", "transfer_gib_per_s", "transfer_setup_ms", "transfer", "guarded",
)  # fmt: skip
WORKER_FIELDS = ("url", "kv_events_endpoint", "kv_replay_endpoint", "dcgm_url")
MODELS_MAX = 64
"""Model names of one pool."""
WORKERS_MAX = 1000
"""Workers of one pool: the poller's shards and the routers' candidate lists are sized for it."""


def create_pool(*, actor: str, slug: str, models: Sequence[str], request_id: str = "", **fields: Any) -> WorkerPool:
    """Any of POOL_FIELDS by name. Raises Invalid or Conflict (a model served by another pool)."""
    with transaction.atomic():
        pool = WorkerPool(slug=slug, **_only(fields, POOL_FIELDS))
        _clean(pool)
        pool.save()
        _set_models(pool, models)
        _record_pool(actor, "pool.create", pool, before=None, request_id=request_id)
    return pool


def update_pool(
    pool_slug: str,
    *,
    actor: str,
    expected_revision: int | None = None,
    models: Sequence[str] | None = None,
    request_id: str = "",
    **fields: Any,
) -> WorkerPool:
    """Changes the named POOL_FIELDS and, when given, the list of models. Raises Stale for an older revision."""
    with transaction.atomic():
        pool = _locked_pool(pool_slug, expected_revision)
        before = pool_as_dict(pool)
        for name, value in _only(fields, POOL_FIELDS).items():
            setattr(pool, name, value)
        pool.revision += 1
        _clean(pool)
        pool.save()
        if models is not None:
            _set_models(pool, models)
        _record_pool(actor, "pool.update", pool, before=before, request_id=request_id)
    return pool


def delete_pool(
    pool_slug: str, *, actor: str, expected_revision: int | None = None, reason: str = "", request_id: str = ""
) -> None:
    """Raises Conflict while the pool has workers."""
    with transaction.atomic():
        pool = _locked_pool(pool_slug, expected_revision)
        if pool.workers.exists():
            raise Conflict("The pool still has workers: delete or move them first.")
        before = pool_as_dict(pool)
        record(
            actor=actor, action="pool.delete", object_type="pool", object_id=pool.slug, before=before, after=None,
            affects_routing=True, reason=reason, request_id=request_id,
        )  # fmt: skip
        pool.delete()


def revoke_model(
    *, actor: str, pool: str, model: str, reason: str = "", request_id: str = ""
) -> tuple[PoolModel, Revocation]:
    """Make the model's revision unhittable on the pool at once: nothing cached for it can be reached any more.

    Requests for the model go on, under its next generation; those under way end. Raises NotFound.
    """
    with transaction.atomic():
        owner = _locked_pool(pool, None)
        row = owner.models.select_for_update().filter(name=model).first()
        if row is None:
            raise NotFound(f"The pool {pool!r} serves no model {model!r}.")
        retired, subject = row.generation, f"{pool}:{model}"
        _begin_generation(row, retired + 1)
        _clean(row)
        row.save()
        entry = record(
            actor=actor, action="model.revoke", object_type="model", object_id=subject[:200],
            before={"model": subject, "generation": retired}, after={"model": subject, "generation": row.generation},
            affects_routing=True, reason=reason, request_id=request_id,
        )  # fmt: skip
        revocation = revoke(entry, kind="model", subject=subject, retired=retired)
    return row, revocation


def add_worker(
    *,
    actor: str,
    pool: str,
    slug: str,
    url: str,
    kv_events_endpoint: str = "",
    kv_replay_endpoint: str = "",
    dcgm_url: str = "",
    state: str = Worker.State.READY,
    request_id: str = "",
) -> Worker:
    """Addresses are checked (S17) before the transaction begins: the name service may be slow.

    Raises Invalid naming the field, NotFound for the pool, Conflict for a URL or slug in use.
    """
    values = {"url": url, "kv_events_endpoint": kv_events_endpoint, "kv_replay_endpoint": kv_replay_endpoint,
              "dcgm_url": dcgm_url}  # fmt: skip
    checked = _checked_addresses(values)
    with transaction.atomic():
        owner = _locked_pool(pool, None)
        if owner.workers.count() >= WORKERS_MAX:
            raise Conflict(f"A pool holds at most {WORKERS_MAX} workers.")
        worker = Worker(pool=owner, slug=slug, state=state, **checked)
        _clean_worker(worker)
        worker.save()
        _record_worker(actor, "worker.create", worker, before=None, request_id=request_id)
    return worker


def update_worker(
    worker_id: str,
    *,
    actor: str,
    expected_revision: int | None = None,
    request_id: str = "",
    **fields: Any,
) -> Worker:
    """Changes the named WORKER_FIELDS. A change of URL forgets what the worker said of itself."""
    checked = _checked_addresses(_only(fields, WORKER_FIELDS))
    with transaction.atomic():
        worker = _locked_worker(worker_id, expected_revision)
        before = worker_as_dict(worker)
        if checked.get("url", worker.url) != worker.url:
            worker.facts, worker.test_report, worker.tested_at = {}, None, None
        for name, value in checked.items():
            setattr(worker, name, value)
        worker.revision += 1
        _clean_worker(worker)
        worker.save()
        _record_worker(actor, "worker.update", worker, before=before, request_id=request_id)
    return worker


def set_worker_state(
    worker_id: str,
    *,
    actor: str,
    state: str,
    reason: str = "",
    expected_revision: int | None = None,
    request_id: str = "",
) -> Worker:
    """`ready`, `drain` or `maintenance`. The same state again is accepted and audited."""
    if state not in Worker.State.values:
        raise Invalid.field("state", f"The state must be one of {', '.join(Worker.State.values)}.")
    with transaction.atomic():
        worker = _locked_worker(worker_id, expected_revision)
        before = worker_as_dict(worker)
        worker.state = state
        worker.revision += 1
        worker.save(update_fields=["state", "revision", "updated_at"])
        _record_worker(actor, f"worker.{state}", worker, before=before, reason=reason, request_id=request_id)
    return worker


def delete_worker(
    worker_id: str, *, actor: str, reason: str = "", expected_revision: int | None = None, request_id: str = ""
) -> None:
    """Its rollups stay: history outlives what it speaks of. Open findings are resolved."""
    with transaction.atomic():
        worker = _locked_worker(worker_id, expected_revision)
        _record_worker(
            actor, "worker.delete", worker, before=worker_as_dict(worker), deleted=True, reason=reason,
            request_id=request_id,
        )  # fmt: skip
        Finding.objects.filter(subject=worker_id, resolved_at=None).update(resolved_at=timezone.now())
        worker.delete()


def test_worker(worker_id: str, *, actor: str, request_id: str = "") -> live_test.Report:
    """Runs the live test (up to live_test.TOTAL_S) and stores report, facts and, where empty, the event endpoints.

    The endpoints a worker names are checked like typed ones (S17); a refused one becomes a failed check.
    """
    worker = _worker(worker_id)
    report = live_test.run(
        live_test.Subject(
            url=worker.url,
            block_size=worker.pool.block_size,
            models=tuple(worker.pool.models.values_list("name", flat=True)),
            kv_events_endpoint=worker.kv_events_endpoint,
            dcgm_url=worker.dcgm_url,
            proof_of=proof_maker(worker.pool) if worker.pool.guarded else None,
        ),
        networks=settings.CONFIG.worker_networks,
        api_key=settings.CONFIG.worker_api_key,
    )
    with transaction.atomic():
        worker = _locked_worker(worker_id, None)
        before, told = worker_as_dict(worker), _told_routers(worker)
        worker.facts = {**worker.facts, **report.facts}
        worker.test_report = [check.as_json() for check in report.checks]
        worker.tested_at = timezone.now()
        if not worker.kv_events_endpoint and report.kv_events_endpoint:
            worker.kv_events_endpoint = report.kv_events_endpoint
            worker.kv_replay_endpoint = report.kv_replay_endpoint
        worker.save()
        routing = told != _told_routers(worker)
        _record_worker(actor, "worker.test", worker, before=before, routing=routing, request_id=request_id)
        _note_test_findings(worker, report)
    return report


def _told_routers(worker: Worker) -> tuple[object, ...]:
    """What a live test may find out that is in the snapshot."""
    facts = worker.facts
    known = tuple(facts.get(name) for name in ("kv_blocks", "block_size", "hash_algorithm"))
    return (*known, worker.kv_events_endpoint, worker.kv_replay_endpoint)


test_worker.__test__ = False  # type: ignore[attr-defined]  # pytest collects callables named test_*


def pool_as_dict(pool: WorkerPool) -> dict[str, object]:
    """The pool as the audit log shows it."""
    values: dict[str, object] = {name: getattr(pool, name) for name in ("slug", *POOL_FIELDS, "revision")}
    return {**values, "models": sorted(pool.models.values_list("name", flat=True))}


def worker_as_dict(worker: Worker) -> dict[str, object]:
    """The worker as the audit log shows it."""
    return {name: getattr(worker, name) for name in ("slug", *WORKER_FIELDS, "state", "revision")}


def _locked_pool(slug: str, expected_revision: int | None) -> WorkerPool:
    pool = WorkerPool.objects.select_for_update().filter(slug=slug).first()
    if pool is None:
        raise NotFound(f"There is no pool {slug!r}.")
    _check_revision(pool.revision, expected_revision)
    return pool


def _worker(worker_id: str) -> Worker:
    pool_slug, _, slug = worker_id.partition("/")
    worker = Worker.objects.select_related("pool").filter(pool__slug=pool_slug, slug=slug).first()
    if worker is None:
        raise NotFound(f"There is no worker {worker_id!r}.")
    return worker


def _locked_worker(worker_id: str, expected_revision: int | None) -> Worker:
    pool_slug, _, slug = worker_id.partition("/")
    locked = Worker.objects.select_related("pool").select_for_update(of=("self",))
    worker = locked.filter(pool__slug=pool_slug, slug=slug).first()
    if worker is None:
        raise NotFound(f"There is no worker {worker_id!r}.")
    _check_revision(worker.revision, expected_revision)
    return worker


def _check_revision(current: int, expected: int | None) -> None:
    if expected is not None and expected != current:
        raise Stale(seen=expected, current=current)


def _only(fields: Mapping[str, Any], allowed: Sequence[str]) -> dict[str, Any]:
    """A mistyped name is a mistake of the caller, not something to ignore."""
    unknown = sorted(fields.keys() - set(allowed))
    if unknown:
        raise Invalid.field(unknown[0], f"There is no field {unknown[0]!r}.")
    return dict(fields)


def _clean(row: models.Model) -> None:
    try:
        row.full_clean()
    except ValidationError as error:
        raise Invalid.from_validation(error) from error


def _clean_worker(worker: Worker) -> None:
    others = Worker.objects.exclude(pk=worker.pk)
    if others.filter(url=worker.url).exists():
        raise Conflict(f"Another worker has the URL {worker.url}.")
    if others.filter(pool=worker.pool, slug=worker.slug).exists():
        raise Conflict(f"The pool has a worker {worker.slug!r} already.")
    _clean(worker)


def _set_models(pool: WorkerPool, names: Sequence[str]) -> None:
    wanted = list(dict.fromkeys(names))
    if not wanted or len(wanted) > MODELS_MAX:
        raise Invalid.field("models", f"Name 1 to {MODELS_MAX} models.")
    taken = PoolModel.objects.filter(name__in=wanted).exclude(pool=pool).select_related("pool").first()
    if taken is not None:
        raise Conflict(f"The model {taken.name!r} is served by pool {taken.pool.slug!r}.")
    pool.models.exclude(name__in=wanted).delete()
    present = set(pool.models.values_list("name", flat=True))
    for name in wanted:
        if name not in present:
            row = PoolModel(pool=pool, name=name)
            retired = retired_generation(kind="model", subject=f"{pool.slug}:{name}")
            if retired:
                _begin_generation(row, retired + 1)
            _clean(row)
            row.save()


def _begin_generation(model: PoolModel, number: int) -> None:
    model.generation = number
    model.generation_nonce = secrets.token_hex(16)
    model.generation_at = timezone.now()


def _checked_addresses(values: Mapping[str, str]) -> dict[str, str]:
    networks = settings.CONFIG.worker_networks
    checked = {}
    for name, value in values.items():
        try:
            if name == "url":
                checked[name] = check_http(value, networks=networks)
            elif not value:
                checked[name] = ""
            elif name == "dcgm_url":
                checked[name] = check_http(value, networks=networks, path_allowed=True)
            else:
                checked[name] = check_tcp(value, networks=networks)
        except AddressRefused as error:
            raise Invalid.field(name, str(error)) from error
    if checked.get("kv_replay_endpoint") and checked.get("kv_events_endpoint") == "":
        raise Invalid.field("kv_replay_endpoint", "A replay endpoint needs an events endpoint.")
    return checked


def _record_pool(
    actor: str, action: str, pool: WorkerPool, *, before: dict[str, object] | None, request_id: str
) -> None:
    record(
        actor=actor, action=action, object_type="pool", object_id=pool.slug, before=before, after=pool_as_dict(pool),
        affects_routing=True, request_id=request_id,
    )  # fmt: skip


def _record_worker(
    actor: str,
    action: str,
    worker: Worker,
    *,
    before: dict[str, object] | None,
    deleted: bool = False,
    routing: bool = True,
    reason: str = "",
    request_id: str = "",
) -> None:
    record(
        actor=actor, action=action, object_type="worker", object_id=worker.worker_id, before=before,
        after=None if deleted else worker_as_dict(worker), affects_routing=routing, reason=reason,
        request_id=request_id,
    )  # fmt: skip


def _note_test_findings(worker: Worker, report: live_test.Report) -> None:
    """Failed checks that stay true until somebody restarts the worker differently are findings."""
    from controlplane.fleet.findings import observe, resolve

    at = timezone.now()
    failed, passed = report.findings_for(worker.worker_id)
    observe(failed, at=at)
    resolve([worker.worker_id], passed, at=at)
