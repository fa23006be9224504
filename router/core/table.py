"""RoutingTable: the one owner of all routing state in a router process, and the front door of the core.

Plain methods, time as an argument, nothing awaited: between `choose` and `reserve` no other request can run, which is
why the table needs no locks (C65). It composes the modules beside it and holds no policy of its own.

    resolve → fingerprint → choose → reserve → first_byte → release
    who       which prefix  which     load       load moves    load ends, isolation judged,
                            worker    counts     to decode     rates and credit learnt

Costs a request, with W workers in the pool and n text blocks: choose O(W + d · log n), reserve O(n), the rest O(1).
Nothing depends on the number of tenants or keys.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from router.contract.ids import NamespaceId, PoolId, TemplateRef, WorkerId
from router.contract.live import KvLive, WorkerLive
from router.contract.secrets import FleetKey
from router.contract.snapshot import PolicySnapshot, SignedSnapshot
from router.contract.telemetry import PrefixHeat
from router.core import choice
from router.core.budget import TenantBudgets
from router.core.fingerprint import Fingerprinter
from router.core.fleet import Fleet, Pool, RoutableWorker
from router.core.heat import Heat
from router.core.index import PrefixIndex
from router.core.isolation import HistoryBook, history_complete
from router.core.limits import CoreLimits
from router.core.model import (
    Assessment,
    Decision,
    Fingerprint,
    Grant,
    NoWorker,
    Outcome,
    Reservation,
    RoutingRequest,
)
from router.core.peers import PeerLoad
from router.core.policy_book import PolicyBook
from router.core.sessions import Sessions
from router.core.view import HEAT_HALF_LIFE_S, HOME_BLOCKS, View, first_blocks, view_of

DEFAULT_LIMITS = CoreLimits()

HEAT_RESCALE_AFTER_S = 4 * 3600.0
"""2 ** (this ÷ HEAT_HALF_LIFE_S) stays far inside a float: forward decay starts anew from here."""
PEER_ROUTERS_MAX = 64
"""Routers whose load is taken into account; the ones beyond it are seen by the pollers."""


@dataclass(frozen=True, slots=True)
class TableState:
    """The table about itself, for telemetry and metrics."""

    worker_states: dict[WorkerId, str]
    """ready, full (above the pool's watermark), drain, maintenance or ejected."""
    worker_outstanding: dict[WorkerId, int]
    worker_prefill_tokens_per_s: dict[WorkerId, float]
    worker_credit: dict[WorkerId, float]
    panicking_pools: list[PoolId]
    index_blocks: int
    index_bytes: int
    sessions: int


class RoutingTable:
    def __init__(
        self, *, fleet_key: FleetKey, booted_at: float, limits: CoreLimits = DEFAULT_LIMITS, rng: random.Random
    ) -> None:
        self._booted_at = booted_at
        self._book = PolicyBook(
            fleet_key=fleet_key,
            verified_keys_max=limits.verified_keys_max,
            stale_deny_after_s=limits.stale_deny_after_s,
        )
        self._fingerprinter = Fingerprinter(
            fleet_key=fleet_key, block_bytes=limits.block_bytes, blocks_max=limits.blocks_max
        )
        self._index = PrefixIndex(bytes_max=limits.index_bytes_max, tenant_share_max=limits.index_tenant_share_max)
        self._sessions = Sessions(fleet_key=fleet_key, sessions_max=limits.sessions_max, ttl_s=limits.session_ttl_s)
        self._heat = Heat(fleet_key=fleet_key, prefixes_max=limits.heat_prefixes_max, top=limits.heat_top)
        self._histories = HistoryBook(
            index=self._index,
            histories_max=limits.histories_max,
            rivals_max=limits.rivals_max,
            template_tokens_max=limits.template_tokens_max,
        )
        self._fleet = Fleet(hot_prefixes_max=limits.hot_prefixes_max)
        self._budgets = TenantBudgets()
        self._rng = rng
        self._version = 0
        self._epoch = 0
        self._confirmed_at: float | None = None
        self._other_routers: int | None = 0
        self._others_seen = False
        """Whether other routers were alive since `_others_seen_at` was last brought up to date."""
        self._others_seen_at: float | None = None

    @property
    def policy_version(self) -> int:
        """Version of the snapshot in force, 0 before the first."""
        return self._version

    @property
    def epoch(self) -> int:
        return self._epoch

    def snapshot_age_s(self, now: float) -> float:
        """Seconds since the snapshot was made or last confirmed to be the newest; infinite before the first."""
        return float("inf") if self._confirmed_at is None else max(0.0, now - self._confirmed_at)

    @property
    def other_routers(self) -> int | None:
        """How many other live routers serve this fleet, None when unknown: they write history this one cannot see."""
        return self._other_routers

    @other_routers.setter
    def other_routers(self, count: int | None) -> None:
        self._other_routers = count
        self._others_seen = self._others_seen or count is None or count > 0

    def apply_snapshot(self, document: SignedSnapshot, snapshot: PolicySnapshot, *, now: float) -> None:
        """Take a verified snapshot, level-triggered: what stays keeps its index, load and rates."""
        self._book.apply(snapshot)
        gone = self._fleet.apply(snapshot, now=now)
        for worker in gone:
            self._index.remove_worker(worker)
            self._sessions.forget_worker(worker)
        for worker in snapshot.workers:
            self._index.add_worker(worker)
        self._index.keep_tenants(set(snapshot.tenants))
        self._budgets.apply(snapshot.tenants, now=now)
        for pool in self._fleet.pools.values():
            # Routers that start together would otherwise all begin their turns at the same worker.
            pool.turns = pool.turns or self._rng.randrange(1, 1 << 30)
        self._version, self._epoch = document.version, document.epoch
        self._confirmed_at = max(self._confirmed_at or document.created_at, document.created_at)

    def confirm_snapshot(self, *, now: float) -> None:
        """The control plane said that the snapshot in force is the newest."""
        if self._confirmed_at is not None:
            self._confirmed_at = max(self._confirmed_at, now)

    def apply_live(self, *, now: float, workers: Mapping[WorkerId, WorkerLive], kv: Mapping[WorkerId, KvLive]) -> None:
        """Take the pollers' and the event subscriber's samples; a worker that restarted loses its index entries."""
        self._note_other_routers(now)
        for worker in self._fleet.apply_live(now=now, workers=workers, kv=kv):
            self.worker_forgotten(worker)

    def apply_peers(self, *, now: float, loads: Mapping[str, Mapping[WorkerId, PeerLoad]]) -> None:
        """Take what the other live routers put on the workers, by router id; replaces what they said before.

        Call it at least four times a second while there are other routers, without this router's own figures. Figures
        older than 2 s fade out. Without peers the pollers' counts less the own requests remain the source.
        """
        self._fleet.apply_peers(now=now, loads=list(loads.values())[:PEER_ROUTERS_MAX])

    def own_load(self, *, now: float) -> dict[WorkerId, PeerLoad]:
        """This router's load on the workers it keeps busy, to be published to the other routers."""
        return {
            worker.id: PeerLoad(
                pending_prefill_tokens=worker.load.remaining_tokens(tokens_per_s=worker.rate.tokens_per_s, now=now),
                outstanding=worker.load.outstanding,
                at=now,
            )
            for worker in self._fleet.workers.values()
            if worker.load.outstanding
        }

    def resolve(self, *, api_key: str | None, model: str, now: float) -> Grant:
        """Raises InvalidKey, ModelNotFound, NamespaceStale or NamespaceUnready."""
        return self._book.resolve(api_key=api_key, model=model, age_s=self.snapshot_age_s(now), now=now)

    def grant_of(self, namespace: NamespaceId, *, model: str) -> Grant:
        """For explanations: what a key of the namespace would get. Raises ModelNotFound or NamespaceUnready."""
        return self._book.grant_of(namespace, model=model)

    def visible_models(self, *, api_key: str | None, now: float) -> list[str]:
        """Raises InvalidKey or NamespaceUnready."""
        return self._book.visible_models(api_key=api_key, now=now)

    def fingerprint(self, grant: Grant, text: bytes, *, template: TemplateRef) -> Fingerprint:
        """Chained block hashes of the canonical text. `template` does not change them (see `fingerprint.py`)."""
        return self._fingerprinter.fingerprint(grant, text)

    def choose(self, request: RoutingRequest, *, now: float, explain: bool = False) -> Decision:
        """The worker for a request, nothing reserved. Raises NoWorker, Shed or OverBudget."""
        pool = self._fleet.pools.get(request.grant.pool)
        if pool is None:
            raise NoWorker("No worker is available for this model at the moment. Please retry.", 5)
        if self._budgets.any and not request.exclude:
            self._budgets.admit(request.grant.tenant, now=now)
        self._fleet.fade_peers(now)
        session_worker = None
        if request.session:
            session_worker = self._sessions.worker(
                self._sessions.key(request.grant.namespace, request.session), now=now
            )
        return choice.choose(self._view(request, pool, now), session_worker, explain=explain)

    def reserve(self, decision: Decision, *, now: float) -> Reservation:
        """Count the decision's load at once (C31) and write its prefix into the index. Release it exactly once."""
        request, grant = decision.request, decision.request.grant
        tokens = decision.predicted_prompt_tokens - decision.predicted_hit_tokens
        if tokens < 1:
            tokens = 1
        reservation = Reservation(decision, now, tokens)
        self._histories.begin(reservation, now=now)
        worker = reservation.holder = self._fleet.workers.get(decision.worker)
        if worker is not None:
            load, rate = worker.load, worker.rate.tokens_per_s
            reservation.ahead_tokens = load.pending_tokens
            load.reserve(tokens, tokens_per_s=rate, now=now)
            worker.burden = None
            pool = self._fleet.pools.get(worker.pool)
            if pool is not None:
                pool.outstanding += 1
                load_ms = tokens / rate * 1000.0
                self._add_heat(worker, pool, load_ms, now)
                self._heat_prefix(request, pool, load_ms, 1.0, now)
                if pool.order is not None:
                    pool.reorder(worker)
        if self._budgets.any:
            self._budgets.charge(grant.tenant, tokens, now=now)
        if request.fingerprint is not None:
            self._index.insert(grant.tenant, request.fingerprint.hashes, decision.worker, now=now)
            self._heat.count(grant.namespace, grant.pool, request.fingerprint, decision.worker)
            if worker is not None and worker.capacity_tokens:
                self._note_room(worker, now)
        if request.session:
            key = self._sessions.key(grant.namespace, request.session)
            self._sessions.remember(key, decision.worker, now=now)
        return reservation

    def first_byte(self, reservation: Reservation, *, now: float) -> None:
        """Prefill is done: the load moves from prefill to decode. Later calls change nothing."""
        if reservation.released or reservation.first_byte_at is not None:
            return
        reservation.first_byte_at = now
        self._histories.first_byte(reservation)
        worker = reservation.holder
        if worker is not None:
            rate = worker.rate.tokens_per_s
            worker.load.first_byte(reservation.prefill_tokens, tokens_per_s=rate, now=now)
            worker.burden = None
            pool = self._fleet.pools.get(worker.pool)
            if pool is not None and pool.order is not None and pool.by_id.get(worker.id) is worker:
                pool.reorder(worker)

    def release(self, reservation: Reservation, outcome: Outcome, *, now: float) -> Assessment:
        """End a reservation: its load goes, its usage teaches, its isolation is judged. A second call is harmless."""
        decision = reservation.decision
        if reservation.released:
            return Assessment(decision.predicted_hit_tokens, 0.0, "")
        reservation.released = True
        if self._others_seen:
            self._note_other_routers(now)
        worker = reservation.holder
        if reservation.first_byte_at is None:
            self._histories.first_byte(reservation)
        verdict = self._histories.assess(reservation, outcome, self._history_complete)
        self._histories.end(reservation, outcome, now=now)
        saved_ms = 0.0
        if worker is not None:
            decoding = reservation.first_byte_at is not None
            rate = worker.rate.tokens_per_s
            worker.load.release(reservation.prefill_tokens, tokens_per_s=rate, now=now, decoding=decoding)
            worker.burden = None
            pool = self._fleet.pools.get(worker.pool)
            if pool is not None and pool.by_id.get(worker.id) is worker:
                pool.outstanding -= 1
                if pool.order is not None:
                    pool.reorder(worker)
                if decoding:
                    self._heat_reply(reservation, pool, now)
            self._learn(reservation, outcome, worker, pool)
            self._note_reply(reservation, outcome, worker, pool, now)
            if outcome.cached_tokens:
                saved_ms = outcome.cached_tokens / worker.rate.tokens_per_s * 1000.0
        return Assessment(decision.predicted_hit_tokens, saved_ms, verdict.isolation, verdict.bound_tokens)

    def worker_failed(self, worker: WorkerId, *, now: float) -> None:
        """A connect failure or a 5xx answer; never call it for a 4xx (C57)."""
        known = self._fleet.workers.get(worker)
        if known is None:
            return
        known.health.failed(now=now)
        pool = self._fleet.pools.get(known.pool)
        if pool is not None:
            pool.ejected_until = max(pool.ejected_until, known.health.until)

    def worker_ok(self, worker: WorkerId, *, now: float) -> None:
        known = self._fleet.workers.get(worker)
        if known is not None:
            known.health.succeeded(now=now)

    def worker_forgotten(self, worker: WorkerId) -> None:
        """The worker restarted or cleared its cache: nothing is thought to be cached there any more."""
        self._index.wipe(worker)
        self._sessions.forget_worker(worker)

    def state(self, *, now: float) -> TableState:
        workers = self._fleet.workers.values()
        return TableState(
            worker_states={worker.id: self._worker_state(worker, now) for worker in workers},
            worker_outstanding={worker.id: worker.load.outstanding for worker in workers},
            worker_prefill_tokens_per_s={worker.id: worker.rate.tokens_per_s for worker in workers},
            worker_credit={worker.id: worker.credit.share for worker in workers},
            panicking_pools=[pool.id for pool in self._fleet.pools.values() if pool.panics(now)],
            index_blocks=self._index.blocks,
            index_bytes=self._index.size_bytes,
            sessions=len(self._sessions),
        )

    def _view(self, request: RoutingRequest, pool: Pool, now: float) -> View:
        matched: dict[WorkerId, int] = {}
        exact = request.exact
        if request.fingerprint is not None and (exact is None or exact.unknown):
            found = self._index.matches(request.grant.tenant, request.fingerprint.hashes)
            if found:
                matched = dict(found)
        return view_of(request, pool, matched, now=now, alone=self._other_routers == 0)

    def drain_heat(self, *, now: float) -> list[PrefixHeat]:
        """Hot prefixes since the last call, hottest first."""
        return self._heat.drain(self._tokens_of)

    def _note_other_routers(self, now: float) -> None:
        if self._others_seen:
            self._others_seen_at = now
            self._others_seen = self._other_routers is None or self._other_routers > 0

    def _add_heat(self, worker: RoutableWorker, pool: Pool, load_ms: float, now: float) -> None:
        age_s = now - pool.heat_started_at
        if age_s > HEAT_RESCALE_AFTER_S:
            decay = 2.0 ** (-age_s / HEAT_HALF_LIFE_S)
            for member in pool.workers:
                member.heat_ms *= decay
            pool.heat_ms *= decay
            pool.heat_started_at, age_s = now, 0.0
            pool.take_foreign()
        grown_ms = load_ms * 2.0 ** (age_s / HEAT_HALF_LIFE_S)
        worker.heat_ms += grown_ms
        pool.heat_ms += grown_ms

    def _heat_prefix(self, request: RoutingRequest, pool: Pool, load_ms: float, requests: float, now: float) -> None:
        """Measured heat of the prompt's prefixes, which decides how many homes they have (S3.6)."""
        hashes: Sequence[int] = ()
        first = HOME_BLOCKS
        if request.exact is not None:
            hashes, first = request.exact.block_hashes, first_blocks(request, pool)
        elif request.fingerprint is not None:
            hashes = request.fingerprint.hashes
        if hashes:
            if self._other_routers:
                # Each router sees its share of a prefix's traffic: with others alive the whole is as many times more.
                load_ms *= 1 + self._other_routers
            pool.hot.add(hashes, first, load_ms=load_ms, requests=requests, now=now)

    def _heat_reply(self, reservation: Reservation, pool: Pool, now: float) -> None:
        """A reply's load: its time under way as a share of the requests that a worker takes at the red line."""
        if reservation.first_byte_at is not None:
            decode_ms = (now - reservation.first_byte_at) * 1000.0 / max(1, pool.policy.spill_outstanding)
            self._heat_prefix(reservation.decision.request, pool, decode_ms, 0.0, now)

    def _note_room(self, worker: RoutableWorker | None, now: float) -> None:
        """What of the worker's cache is believed to be free, and what the next block would evict. O(1)."""
        pool = None if worker is None else self._fleet.pools.get(worker.pool)
        holder = None if worker is None else self._index.holder(worker.id)
        if worker is None or pool is None or holder is None or not worker.capacity_tokens:
            return
        tokens_a_block = self._fingerprinter.block_bytes / pool.text.bytes_per_token
        self._index.set_capacity(worker.id, worker.capacity_tokens / tokens_a_block)
        worker.free_tokens = holder.free_blocks * tokens_a_block
        if holder.reuse != worker.measured_reuse:
            worker.measured_reuse = holder.reuse
            self._share_reuse(pool, now)
        else:
            worker.reuse = holder.tail_reuse(pool.reuse, now=now)

    def _share_reuse(self, pool: Pool, now: float) -> None:
        """A worker of the pool learnt what its evictions cost. O(W), once in a quarter of a cache."""
        known = [(each, holder) for each in pool.workers if (holder := self._index.holder(each.id)) is not None]
        pool.reuse = sum(holder.reuse for _, holder in known) / len(known)
        for each, holder in known:
            each.reuse = holder.tail_reuse(pool.reuse, now=now)

    def _note_reply(
        self, reservation: Reservation, outcome: Outcome, worker: RoutableWorker, pool: Pool | None, now: float
    ) -> None:
        """A reply stays in the worker's cache, and what was predicted too much is given back to the tenant."""
        if worker.capacity_tokens and outcome.completion_tokens and pool is not None:
            blocks = outcome.completion_tokens * pool.text.bytes_per_token / self._fingerprinter.block_bytes
            self._index.occupy(worker.id, blocks, now=now)
        if not self._budgets.any:
            return
        charged, grant = reservation.prefill_tokens, reservation.decision.request.grant
        if outcome.prompt_tokens is not None and outcome.cached_tokens is not None:
            used = max(outcome.prompt_tokens - outcome.cached_tokens, 0)
            self._budgets.charge(grant.tenant, used - charged, now=now)
        elif not outcome.ok and reservation.first_byte_at is None:
            self._budgets.charge(grant.tenant, -charged, now=now)

    def _history_complete(self, reservation: Reservation) -> bool:
        worker = reservation.holder
        if worker is None:
            return False
        grant = reservation.decision.request.grant
        births = [worker.started_at, worker.cache_epoch_at, grant.policy.generation_at or None]
        return history_complete(
            began_at=max((birth for birth in births if birth is not None), default=None),
            lost_at=[
                self._booted_at,
                worker.joined_at,
                self._index.evicted_at(grant.tenant),
                self._histories.forgotten_at,
                self._histories.leaves_forgotten_at,
                self._others_seen_at,
            ],
            other_routers=self._other_routers,
        )

    def _learn(self, reservation: Reservation, outcome: Outcome, worker: RoutableWorker, pool: Pool | None) -> None:
        decision = reservation.decision
        fingerprint = decision.request.fingerprint
        if not outcome.ok:
            if reservation.first_byte_at is None and fingerprint is not None:
                # Refused or never reached: what this request would have added was not cached.
                self._index.disbelieve(
                    decision.request.grant.tenant,
                    fingerprint.hashes,
                    decision.worker,
                    from_block=_matched_blocks(decision, fingerprint),
                )
            return
        if outcome.prompt_tokens is not None and pool is not None and fingerprint is not None:
            pool.text.observe(text_bytes=fingerprint.text_bytes, prompt_tokens=outcome.prompt_tokens)
        if outcome.cached_tokens is not None and decision.predicted_hit_tokens:
            worker.credit.observe(
                predicted_tokens=decision.predicted_hit_tokens, delivered_tokens=outcome.cached_tokens
            )
        self._learn_rate(reservation, outcome, worker)

    def _learn_rate(self, reservation: Reservation, outcome: Outcome, worker: RoutableWorker) -> None:
        """TTFT ÷ the uncached tokens up to this request's last one, those pending before it included."""
        if reservation.first_byte_at is None:
            return
        tokens = reservation.prefill_tokens
        if outcome.prompt_tokens is not None and outcome.cached_tokens is not None:
            tokens = max(outcome.prompt_tokens - outcome.cached_tokens, 0)
        self._fleet.observe_rate(
            worker,
            tokens=tokens + reservation.ahead_tokens,
            seconds=reservation.first_byte_at - reservation.reserved_at,
        )

    def _tokens_of(self, pool: PoolId, text_bytes: int) -> int:
        known = self._fleet.pools.get(pool)
        return known.text.tokens(text_bytes) if known is not None else 0

    def _worker_state(self, worker: RoutableWorker, now: float) -> str:
        if worker.state != "ready":
            return worker.state
        if worker.health.ejected(now):
            return "ejected"
        pool = self._fleet.pools.get(worker.pool)
        return "full" if pool is not None and worker.watermarks.full(pool.policy.watermark) else "ready"


def _matched_blocks(decision: Decision, fingerprint: Fingerprint) -> int:
    """Blocks of the fingerprint that the worker held before; of an exact prompt, those its hits cover."""
    if decision.request.exact is None:
        return decision.matched_blocks
    return len(fingerprint.hashes) * decision.predicted_hit_tokens // max(decision.predicted_prompt_tokens, 1)
