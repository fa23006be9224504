"""The production routing core as a policy: the same `RoutingTable`, its clock the simulated one.

It is told what a router learns in production and nothing else: polls with their delay, first bytes, the usage of
finished requests, and at once that a worker is gone or back. It sees the prompt's text blocks (no session id) and never
a worker's cache.
"""

from __future__ import annotations

import random
from collections.abc import Sequence as Many

import msgspec

from router.contract.ids import KeyId, NamespaceId, PoolId, TenantId, WorkerId
from router.contract.live import KvLive, WorkerLive
from router.contract.secrets import FleetKey
from router.contract.snapshot import (
    KeyGrant,
    NamespacePolicy,
    PolicySnapshot,
    PoolPolicy,
    RoutingName,
    TenantGrant,
    Watermark,
    WorkerEntry,
    sign_snapshot,
)
from router.core.model import ExactPrompt, Fingerprint, Grant, Outcome, Reservation, RoutingRequest
from router.core.table import RoutingTable
from simulator.fleet.conditions import IDEAL, Conditions
from simulator.fleet.engine import Sequence
from simulator.fleet.hardware import GpuProfile
from simulator.fleet.policy import Choice, Policy, WorkerView
from simulator.fleet.workload import BYTES_PER_TOKEN, TEXT_BLOCK_TOKENS, Request

_MODEL = "sim-llama"
_POOL = PoolId("pool")
_KEY_SECRET = "A" * 43
_MAX_GIB_PER_S = 1e9
"""Stands for no limit: a snapshot holds numbers only."""


class Tidemark(Policy):
    def __init__(
        self,
        workers: int,
        profile: GpuProfile,
        *,
        rng: random.Random,
        routing: RoutingName = "tidemark",
        watermark: Watermark = Watermark(),  # noqa: B008  frozen
        conditions: Conditions = IDEAL,
        block_tokens: int = 16,
    ) -> None:
        fleet_key = FleetKey(bytes(32))
        self.table = RoutingTable(fleet_key=fleet_key, booted_at=0.0, rng=rng)
        pool = _pool(profile, routing, watermark, conditions, block_tokens)
        snapshot = _snapshot(workers, profile, fleet_key, pool, conditions.tenants)
        document = sign_snapshot(snapshot, version=1, epoch=1, created_at=0.0, fleet_key=fleet_key)
        self.table.apply_snapshot(document, snapshot, now=0.0)
        self.workers = list(snapshot.workers)
        self._index = {worker: index for index, worker in enumerate(snapshot.workers)}
        self._began_at = dict.fromkeys(snapshot.workers, 0.0)
        self._grants: list[Grant] = [
            self.table.resolve(api_key=f"tm_{_key_id(tenant)}_{_KEY_SECRET}", model=_MODEL, now=0.0)
            for tenant in range(conditions.tenants)
        ]
        self._reservations: dict[int, Reservation] = {}

    def choose(self, request: Request, workers: list[WorkerView], now: float) -> Choice:
        asked = RoutingRequest(
            request_id=str(request.id),
            grant=self._grants[request.tenant],
            fingerprint=fingerprint(request),
            max_tokens=request.output_tokens,
            exact=self.exact(request, workers, now),
        )
        decision = self.table.choose(asked, now=now)
        self._reservations[request.id] = self.table.reserve(decision, now=now)
        return Choice(self._index[decision.worker], spilled=decision.spill != "")

    def exact(self, request: Request, workers: list[WorkerView], now: float) -> ExactPrompt | None:
        """What the workers themselves tell of the prompt; None where they are not followed."""
        return None

    def first_token(self, sequence: Sequence, now: float) -> None:
        self.table.first_byte(self._reservations[sequence.request.id], now=now)

    def finished(self, sequence: Sequence, now: float) -> None:
        request = sequence.request
        reservation = self._reservations.pop(request.id)
        first_token_s = now if sequence.first_token_s is None else sequence.first_token_s
        outcome = Outcome(
            ok=True,
            prompt_tokens=request.prompt_tokens,
            completion_tokens=request.output_tokens,
            cached_tokens=sequence.cached_tokens,
            ttft_ms=(first_token_s - request.arrival_s) * 1_000,
            duration_ms=(now - request.arrival_s) * 1_000,
        )
        self.table.release(reservation, outcome, now=now)
        self.answered(reservation, outcome, now)

    def answered(self, reservation: Reservation, outcome: Outcome, now: float) -> None:
        """The answer ended, and the table knows."""

    def left(self, worker: int, lost: Many[Sequence], now: float) -> None:
        """As where health probes show it at once."""
        gone = self.workers[worker]
        for sequence in lost:
            died = Outcome(ok=False, error="upstream_died", status=502)
            self.table.release(self._reservations.pop(sequence.request.id), died, now=now)
        self.table.worker_probed(gone, "down")
        self.table.worker_forgotten(gone)

    def returned(self, worker: int, now: float) -> None:
        self._began_at[self.workers[worker]] = now
        self.table.worker_probed(self.workers[worker], "up")

    def sampled(self, workers: list[WorkerView], now: float) -> None:
        live: dict[WorkerId, WorkerLive] = {}
        kv: dict[WorkerId, KvLive] = {}
        for worker, index in self._index.items():
            sample, cache = workers[index].sample, workers[index].engine.cache
            if sample is None:
                continue
            live[worker] = WorkerLive(
                at=sample.at,
                running=sample.running,
                waiting=sample.waiting,
                kv_use=sample.kv_use,
                started_at=self._began_at[worker],
            )
            kv[worker] = KvLive(
                at=sample.at,
                resident_blocks=sample.resident_blocks,
                capacity_blocks=cache.capacity_blocks,
                evictions_per_s=sample.evictions_per_s,
                cache_epoch_at=self._began_at[worker],
            )
        self.table.apply_live(now=now, workers=live, kv=kv)


def fingerprint(request: Request) -> Fingerprint:
    """What the router would have hashed from the text, at BYTES_PER_TOKEN."""
    text_bytes = request.prompt_tokens * BYTES_PER_TOKEN
    return Fingerprint(request.text_hashes, TEXT_BLOCK_TOKENS * BYTES_PER_TOKEN, text_bytes)


def _key_id(tenant: int) -> KeyId:
    return KeyId(f"{tenant:012x}")


def _pool(
    profile: GpuProfile, routing: RoutingName, watermark: Watermark, conditions: Conditions, block_tokens: int
) -> PoolPolicy:
    pool = PoolPolicy(models=(_MODEL,), routing=routing, watermark=watermark, block_size=block_tokens)
    tier = conditions.tier
    if not tier.gib:
        return pool
    return msgspec.structs.replace(
        pool,
        kv_bytes_per_token=profile.kv_bytes_per_token,
        transfer_gib_per_s=min(tier.gib_per_s, _MAX_GIB_PER_S),
        transfer_setup_ms=tier.setup_ms,
    )


def _snapshot(workers: int, profile: GpuProfile, fleet_key: FleetKey, pool: PoolPolicy, tenants: int) -> PolicySnapshot:
    ids = [WorkerId(f"pool/w{index + 1}") for index in range(workers)]
    names = [TenantId("acme" if tenant == 0 else f"tenant{tenant}") for tenant in range(tenants)]
    keys, namespaces = {}, {}
    for number, tenant in enumerate(names):
        namespace = NamespaceId(f"{tenant}/fleet")
        key = _key_id(number)
        keys[key] = KeyGrant(tenant, namespace, fleet_key.api_key_hash(key, _KEY_SECRET))
        namespaces[namespace] = NamespacePolicy(tenant, "fleet", generation_nonce="1")
    return PolicySnapshot(
        tenants={tenant: TenantGrant() for tenant in names},
        keys=keys,
        namespaces=namespaces,
        pools={_POOL: pool},
        workers={
            worker: WorkerEntry(_POOL, f"http://{index}.invalid", kv_capacity_tokens=profile.kv_capacity_tokens)
            for index, worker in enumerate(ids)
        },
    )
