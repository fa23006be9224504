"""The production routing core as a policy: the same `RoutingTable`, its clock the simulated one.

It is told what a router learns in production and nothing else: polls with their delay, first bytes, and the usage of
finished requests. It sees the prompt's text blocks (no session id) and never a worker's cache.
"""

from __future__ import annotations

import random

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
from router.core.model import Fingerprint, Grant, Outcome, Reservation, RoutingRequest
from router.core.table import RoutingTable
from simulator.fleet.engine import Sequence
from simulator.fleet.hardware import GpuProfile
from simulator.fleet.policy import Choice, Policy, WorkerView
from simulator.fleet.workload import BYTES_PER_TOKEN, TEXT_BLOCK_TOKENS, Request

_MODEL = "sim-llama"
_TENANT, _POOL = TenantId("acme"), PoolId("pool")
_NAMESPACE = NamespaceId("acme/fleet")
_KEY_ID, _KEY_SECRET = KeyId("0" * 12), "A" * 43


class Tidemark(Policy):
    def __init__(
        self,
        workers: int,
        profile: GpuProfile,
        *,
        rng: random.Random,
        routing: RoutingName = "tidemark",
        watermark: Watermark = Watermark(),  # noqa: B008  frozen
    ) -> None:
        fleet_key = FleetKey(bytes(32))
        self.table = RoutingTable(fleet_key=fleet_key, booted_at=0.0, rng=rng)
        snapshot = _snapshot(workers, profile, fleet_key, routing, watermark)
        document = sign_snapshot(snapshot, version=1, epoch=1, created_at=0.0, fleet_key=fleet_key)
        self.table.apply_snapshot(document, snapshot, now=0.0)
        self._index = {worker: index for index, worker in enumerate(snapshot.workers)}
        self._grant: Grant = self.table.resolve(api_key=f"tm_{_KEY_ID}_{_KEY_SECRET}", model=_MODEL, now=0.0)
        self._reservations: dict[int, Reservation] = {}

    def choose(self, request: Request, workers: list[WorkerView], now: float) -> Choice:
        asked = RoutingRequest(
            request_id=str(request.id),
            grant=self._grant,
            fingerprint=fingerprint(request),
            max_tokens=request.output_tokens,
        )
        decision = self.table.choose(asked, now=now)
        self._reservations[request.id] = self.table.reserve(decision, now=now)
        return Choice(self._index[decision.worker], spilled=decision.spill != "")

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

    def sampled(self, workers: list[WorkerView], now: float) -> None:
        live: dict[WorkerId, WorkerLive] = {}
        kv: dict[WorkerId, KvLive] = {}
        for worker, index in self._index.items():
            sample, cache = workers[index].sample, workers[index].engine.cache
            if sample is None:
                continue
            live[worker] = WorkerLive(
                at=sample.at, running=sample.running, waiting=sample.waiting, kv_use=sample.kv_use, started_at=0.0
            )
            kv[worker] = KvLive(
                at=sample.at,
                resident_blocks=sample.resident_blocks,
                capacity_blocks=cache.capacity_blocks,
                evictions_per_s=sample.evictions_per_s,
                cache_epoch_at=0.0,
            )
        self.table.apply_live(now=now, workers=live, kv=kv)


def fingerprint(request: Request) -> Fingerprint:
    """What the router would have hashed from the text, at BYTES_PER_TOKEN."""
    text_bytes = request.prompt_tokens * BYTES_PER_TOKEN
    return Fingerprint(request.text_hashes, TEXT_BLOCK_TOKENS * BYTES_PER_TOKEN, text_bytes)


def _snapshot(
    workers: int, profile: GpuProfile, fleet_key: FleetKey, routing: RoutingName, watermark: Watermark
) -> PolicySnapshot:
    ids = [WorkerId(f"pool/w{index + 1}") for index in range(workers)]
    key_hash = fleet_key.api_key_hash(_KEY_ID, _KEY_SECRET)
    return PolicySnapshot(
        tenants={_TENANT: TenantGrant()},
        keys={_KEY_ID: KeyGrant(_TENANT, _NAMESPACE, key_hash)},
        namespaces={_NAMESPACE: NamespacePolicy(_TENANT, "fleet", generation_nonce="1")},
        pools={_POOL: PoolPolicy(models=(_MODEL,), routing=routing, watermark=watermark)},
        workers={
            worker: WorkerEntry(_POOL, f"http://{index}.invalid", kv_capacity_tokens=profile.kv_capacity_tokens)
            for index, worker in enumerate(ids)
        },
    )
