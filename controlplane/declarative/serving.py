"""Pools and workers as documents."""

from __future__ import annotations

from typing import Any

from controlplane.declarative.documents import Spec
from controlplane.declarative.kind import FLAG, LIST, NUMBER, OR_NONE, TEXT, WHOLE, Change, Field, Kind
from controlplane.declarative.restoring import moment, moment_text, restore
from controlplane.fleet.models import PoolModel, Worker, WorkerPool
from controlplane.fleet.services import (
    POOL_FIELDS,
    WORKER_FIELDS,
    add_worker,
    create_pool,
    delete_pool,
    delete_worker,
    set_worker_state,
    update_pool,
    update_worker,
)

POOL = {
    "name": Field(TEXT, ""),
    "models": Field(LIST, is_required=True, is_set=True),
    "block_size": Field(WHOLE, 16),
    "routing": Field(TEXT, "tidemark"),
    "virtual_nodes": Field(WHOLE, 100),
    "spill_outstanding": Field(WHOLE, 16),
    "prefill_tokens_per_s": Field(NUMBER + OR_NONE),
    "tokenizer": Field(TEXT, ""),
    "kv_bytes_per_token": Field(WHOLE + OR_NONE),
    "transfer_gib_per_s": Field(NUMBER + OR_NONE),
    "transfer_setup_ms": Field(NUMBER, 0),
    "transfer": Field(TEXT, ""),
    "guarded": Field(FLAG, False),
}
WORKER = {
    "url": Field(TEXT, is_required=True),
    "kv_events_endpoint": Field(TEXT, ""),
    "kv_replay_endpoint": Field(TEXT, ""),
    "dcgm_url": Field(TEXT, ""),
    "state": Field(TEXT, "ready"),
}
FACTS = ("kv_blocks", "block_size", "hash_algorithm")
"""Of what a worker said of itself, what routers are told; the next poll renews it."""


def _read_pools() -> dict[str, Spec]:
    return {
        row.slug: {**{name: _plain(getattr(row, name)) for name in POOL_FIELDS}, "models": _model_names(row)}
        for row in WorkerPool.objects.prefetch_related("models").order_by()
    }


def _model_names(row: WorkerPool) -> list[str]:
    return sorted(model.name for model in row.models.all())


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, str) else value


def _create_pool(name: str, wanted: Spec, change: Change) -> None:
    create_pool(actor=change.actor, slug=name, **wanted)
    state = change.sealed_for("Pool", name)
    for model, generation in (state or {}).get("models", {}).items():
        row = PoolModel.objects.filter(pool__slug=name, name=model).first()
        if row is not None:
            values = {
                "generation": generation["generation"],
                "generation_nonce": generation["nonce"],
                "generation_at": moment(generation["generation_at"]),
            }
            restore(row, values, object_type="model", object_id=f"{name}:{model}"[:200], change=change)


def _update_pool(name: str, wanted: Spec, current: Spec, change: Change) -> None:
    update_pool(name, actor=change.actor, **{key: wanted[key] for key in wanted if wanted[key] != current[key]})


def _remove_pool(name: str, change: Change) -> None:
    delete_pool(name, actor=change.actor, reason=change.reason)


def _seal_pools() -> dict[str, Spec]:
    found: dict[str, Spec] = {}
    for row in PoolModel.objects.exclude(generation_nonce="").select_related("pool").order_by():
        models = found.setdefault(row.pool.slug, {"models": {}})["models"]
        models[row.name] = {
            "nonce": row.generation_nonce,
            "generation": row.generation,
            "generation_at": moment_text(row.generation_at),
        }
    return found


def _worker_rows() -> Any:
    return Worker.objects.select_related("pool").order_by()


def _read_workers() -> dict[str, Spec]:
    return {row.worker_id: {name: str(getattr(row, name)) for name in WORKER} for row in _worker_rows()}


def _create_worker(name: str, wanted: Spec, change: Change) -> None:
    pool, _, slug = name.partition("/")
    row = add_worker(actor=change.actor, pool=pool, slug=slug, **wanted)
    state = change.sealed_for("Worker", name)
    if state is not None:
        restore(row, {"facts": state["facts"]}, object_type="worker", object_id=name, change=change)


def _update_worker(name: str, wanted: Spec, current: Spec, change: Change) -> None:
    changed = {key: wanted[key] for key in WORKER_FIELDS if wanted[key] != current[key]}
    if changed:
        update_worker(name, actor=change.actor, **changed)
    if wanted["state"] != current["state"]:
        set_worker_state(name, actor=change.actor, state=wanted["state"], reason=change.reason)


def _remove_worker(name: str, change: Change) -> None:
    delete_worker(name, actor=change.actor, reason=change.reason)


def _seal_workers() -> dict[str, Spec]:
    facts = {row.worker_id: {key: row.facts[key] for key in FACTS if key in row.facts} for row in _worker_rows()}
    return {name: {"facts": told} for name, told in facts.items() if told}


POOLS = Kind("Pool", "pool", POOL, _read_pools, _create_pool, _update_pool, _remove_pool, seal=_seal_pools)
WORKERS = Kind(
    "Worker", "worker", WORKER, _read_workers, _create_worker, _update_worker, _remove_worker, seal=_seal_workers
)
