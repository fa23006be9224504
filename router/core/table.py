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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from router.contract.ids import NamespaceId, PoolId, TemplateRef, TenantId, WorkerId
from router.contract.live import KvLive, WorkerLive
from router.contract.secrets import FleetKey
from router.contract.snapshot import PolicySnapshot, SignedSnapshot
from router.contract.telemetry import Calibration, PrefixHeat
from router.core import choice
from router.core.budget import TenantBudgets
from router.core.exact.expected import Expectation, Expected
from router.core.fast_misses import FACTOR, expected_s, took_s
from router.core.fingerprint import Fingerprinter
from router.core.fleet import Fleet, Pool, Probe, RoutableWorker
from router.core.heat import Heat
from router.core.hints import Hints, Placed
from router.core.index import PrefixIndex
from router.core.isolation import HistoryBook, Verdict, history_complete
from router.core.lease import Lease
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
from router.core.placement import Placements
from router.core.policy_book import PolicyBook
from router.core.proofs import Proofs
from router.core.sessions import Sessions
from router.core.view import HEAT_HALF_LIFE_S, HOME_BLOCKS, NOTHING_EXPECTED, View, first_blocks, view_of

DEFAULT_LIMITS: Final = CoreLimits()

HEAT_RESCALE_AFTER_S: Final = 4 * 3600.0
"""2 ** (this ÷ HEAT_HALF_LIFE_S) stays far inside a float: forward decay starts anew from here."""
PEER_ROUTERS_MAX: Final = 64
"""Routers whose load is taken into account; the ones beyond it are seen by the pollers."""


@dataclass(frozen=True, slots=True)
class TableState:
    """The table about itself, for telemetry and metrics."""

    worker_states: dict[WorkerId, str]
    """ready, full (above the pool's watermark), drain, maintenance or ejected."""
    worker_outstanding: dict[WorkerId, int]
    worker_prefill_tokens_per_s: dict[WorkerId, float]
    worker_credit: dict[WorkerId, float]
    calibration: dict[str, Calibration]
    """By worker: rate and credit with what they rest on."""
    panicking_pools: list[PoolId]
    index_blocks: int
    index_bytes: int
    sessions: int


class RoutingTable:
    def __init__(
        self, *, fleet_key: FleetKey, booted_at: float, limits: CoreLimits = DEFAULT_LIMITS, rng: random.Random
    ) -> None:
        self._booted_at = booted_at
        self.stale_deny_after_s = limits.stale_deny_after_s
        """Age of the snapshot above which namespaces that deny on stale are refused."""
        self._book = PolicyBook(
            fleet_key=fleet_key,
            verified_keys_max=limits.verified_keys_max,
            stale_deny_after_s=limits.stale_deny_after_s,
        )
        self._fingerprinter = Fingerprinter(
            fleet_key=fleet_key,
            block_bytes=limits.block_bytes,
            blocks_max=limits.blocks_max,
            heads_bytes_max=limits.heads_bytes_max,
        )
        self._index = PrefixIndex(bytes_max=limits.index_bytes_max, tenant_share_max=limits.index_tenant_share_max)
        self._hints = Hints(
            fleet_key=fleet_key, bytes_max=limits.hints_bytes_max, tenant_share_max=limits.index_tenant_share_max
        )
        self._expected = Expected()
        self._sessions = Sessions(fleet_key=fleet_key, sessions_max=limits.sessions_max, ttl_s=limits.session_ttl_s)
        self._heat = Heat(fleet_key=fleet_key, prefixes_max=limits.heat_prefixes_max, top=limits.heat_top)
        self._placements = Placements(key=self._heat.key)
        self._histories = HistoryBook(
            index=self._index,
            evidence_key=fleet_key.subkey("evidence/v1"),
            histories_max=limits.histories_max,
            rivals_max=limits.rivals_max,
            template_tokens_max=limits.template_tokens_max,
        )
        self._fleet = Fleet(hot_prefixes_max=limits.hot_prefixes_max)
        self._budgets = TenantBudgets()
        self.proofs = Proofs(fleet_key)
        self._rng = rng
        self._version = 0
        self._epoch = 0
        self._lease = Lease()
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

    def snapshot_age_s(self, lease_now: float) -> float:
        """Seconds since the snapshot was made or last confirmed to be the newest; infinite before the first."""
        return self._lease.age_s(lease_now)

    @property
    def other_routers(self) -> int | None:
        """How many other live routers serve this fleet, None when unknown: they write history this one cannot see."""
        return self._other_routers

    @other_routers.setter
    def other_routers(self, count: int | None) -> None:
        self._other_routers = count
        self._others_seen = self._others_seen or count is None or count > 0

    def apply_snapshot(
        self, document: SignedSnapshot, snapshot: PolicySnapshot, *, now: float, lease_now: float | None = None
    ) -> None:
        """Take a verified snapshot, level-triggered: what stays keeps its index, load and rates.

        `now` is in Unix seconds, `lease_now` of the monotonic clock; None: one clock serves for both.
        """
        self._book.apply(snapshot)
        gone = self._fleet.apply(snapshot, now=now)
        for worker in gone:
            self._index.remove_worker(worker)
            self._sessions.forget_worker(worker)
            self._expected.forget_worker(worker)
        self._hints.keep_workers(snapshot.workers)
        for worker in snapshot.workers:
            self._index.add_worker(worker)
        owners = {tenant for tenant, grant in snapshot.tenants.items() if grant.status != "revoked"}
        self._index.keep_tenants(owners | self._book.shared_owners)
        self._budgets.apply(snapshot.tenants, now=now)
        self._placements.apply(snapshot.placements)
        for pool in self._fleet.pools.values():
            # Routers that start together would otherwise all begin their turns at the same worker.
            pool.turns = pool.turns or self._rng.randrange(1, 1 << 30)
        if document.version != self._version:
            # One that is applied once more, with something laid over it, is no younger for that.
            self._lease.begin(age_s=now - document.created_at, now=now if lease_now is None else lease_now)
        self._version, self._epoch = document.version, document.epoch
        self.proofs.apply(snapshot.pools, epoch=document.epoch)

    def grant_for(self, grant: Grant, *, role: str, text: bytes) -> Grant:
        """The grant for a request that consists of one message of that role."""
        return self._book.grant_for(grant, role=role, text=text)

    def confirm_snapshot(self, *, lease_now: float) -> None:
        """The control plane said that the snapshot in force is the newest, when asked at `lease_now`."""
        if self._version:
            self._lease.renew(now=lease_now)

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

    def take_placed(self) -> list[Placed]:
        """Where prompts went since the last call, to be told to the other routers."""
        return self._hints.take_outbox()

    def hear_placed(self, placed: Iterable[Placed], *, now: float) -> None:
        """What another router told of where prompts went."""
        self._hints.hear(placed, now=now)

    def resolve(self, *, api_key: str | None, model: str, now: float, lease_now: float | None = None) -> Grant:
        """Raises InvalidKey, ModelNotFound, NamespaceStale or NamespaceUnready. Clocks as in `apply_snapshot`."""
        age_s = self._lease.age_s(now if lease_now is None else lease_now)
        return self._book.resolve(api_key=api_key, model=model, age_s=age_s, now=now)

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
        known = bool(request.exclude) or request.admitted
        if self._budgets.any and not known:
            self._budgets.admit(request.grant.tenant, now=now)
        self._fleet.fade_peers(now)
        session_worker = None
        if request.session:
            session_worker = self._sessions.worker(
                self._sessions.key(request.grant.namespace, request.session), now=now
            )
        decision = choice.choose(self._view(request, pool, now), session_worker, explain=explain)
        fingerprint = request.fingerprint
        if fingerprint is not None and not known:
            depth = self._index.known_depth(request.grant.owner, fingerprint.hashes)
            decision.repeated_tokens = pool.text.tokens(min(depth * fingerprint.block_bytes, fingerprint.text_bytes))
        if explain and fingerprint is not None:
            decision.prefix = self._heat.id_of(fingerprint)
        return decision

    def may_pull(self, pool: PoolId, *, now: float) -> bool:
        """Whether the pool's workers pull KV from each other, and did not fail to do so in a row just before."""
        known = self._fleet.pools.get(pool)
        return known is not None and known.policy.transfer != "" and not known.pulls.ejected(now)

    def reserve_source(self, decision: Decision, *, now: float) -> Reservation:
        """The load that a pull puts on its source, which computes what it lacks of the prompt. Release it exactly once,
        as any other: what it answers teaches and is judged."""
        source = decision.source
        assert source is not None
        leg = Decision(decision.request, source.worker, source.url, decision.reason)
        leg.leg = True
        leg.predicted_prompt_tokens = decision.predicted_prompt_tokens
        leg.predicted_hit_tokens = source.tokens
        return self.reserve(leg, now=now)

    def pulled(self, reservation: Reservation, source: Reservation, outcome: Outcome, *, now: float) -> None:
        """The source has answered, and its reservation goes. The worker that pulls will repeat its cached tokens: their
        isolation is judged here, by the source's own history."""
        reservation.pulled = self.release(source, outcome, now=now)
        reservation.pulled_tokens = outcome.cached_tokens or 0

    def pull_ended(self, pool: PoolId, *, ok: bool, now: float) -> None:
        known = self._fleet.pools.get(pool)
        if known is not None and ok:
            known.pulls.succeeded(now=now)
        elif known is not None:
            known.pulls.failed(now=now)

    def reserve(self, decision: Decision, *, now: float) -> Reservation:
        """Count the decision's load at once (C31) and write its prefix into the index. Release it exactly once."""
        request, grant = decision.request, decision.request.grant
        tokens = decision.predicted_prompt_tokens - decision.predicted_hit_tokens
        if tokens < 1 or decision.source is not None:
            # The source of a pull computes the others.
            tokens = 1
        pool = self._fleet.pools.get(grant.pool)
        work = tokens if pool is None else _work(pool, decision.predicted_hit_tokens, tokens)
        reservation = Reservation(decision, now, tokens, work)
        self._histories.begin(reservation, now=now)
        worker = reservation.holder = self._fleet.workers.get(decision.worker)
        if worker is not None:
            load, rate = worker.load, worker.rate.tokens_per_s
            decision.beside = load.outstanding + int(worker.foreign_requests)
            reservation.ahead_work = worker.peer_tokens
            reservation.alone = not load.pending_tokens and not worker.peer_tokens
            load.reserve(work, tokens_per_s=rate, now=now)
            worker.burden = None
            if pool is not None:
                pool.outstanding += 1
                load_ms = work / rate * 1000.0
                self._add_heat(worker, pool, load_ms, now)
                self._heat_prefix(request, pool, load_ms, 0.0 if decision.leg else 1.0, now)
                if pool.order is not None:
                    pool.reorder(worker)
        if self._budgets.any:
            self._budgets.charge(grant.tenant, tokens, now=now)
        exact = request.exact
        if exact is not None and worker is not None and decision.worker not in exact.unknown:
            reservation.expectation = self._expected.begin(decision.worker, exact.block_hashes, now=now)
        if request.fingerprint is not None:
            hashes = request.fingerprint.hashes
            if self._other_routers != 0 and not decision.leg:
                known = self._index.known_depth(grant.owner, hashes)
                self._hints.tell(grant.owner, hashes, decision.worker, known=known)
            self._index.insert(grant.owner, hashes, decision.worker, now=now)
            if pool is not None and not decision.leg:
                self._count_prefix(decision, pool)
            if worker is not None and worker.capacity_tokens:
                self._note_room(worker, now)
        if request.session and not decision.leg:
            key = self._sessions.key(grant.namespace, request.session)
            self._sessions.remember(key, decision.worker, now=now)
        return reservation

    def first_byte(self, reservation: Reservation, *, now: float) -> None:
        """Prefill is done: the load moves from prefill to decode. Later calls change nothing."""
        if reservation.released or reservation.first_byte_at is not None:
            return
        reservation.first_byte_at = now
        self._histories.first_byte(reservation)
        if reservation.expectation is not None:
            self._expected.read(reservation.expectation, now=now)
        worker = reservation.holder
        if worker is not None:
            rate = worker.rate.tokens_per_s
            if worker.load.first_byte_at > reservation.reserved_at:
                reservation.prefill_began_at, reservation.ahead_work = worker.load.first_byte_at, 0.0
            worker.load.first_byte(reservation.prefill_work, tokens_per_s=rate, now=now)
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
        if reservation.expectation is not None:
            self._end_expectation(reservation, reservation.expectation, outcome, now)
        verdict = self._verdict(reservation, outcome)
        self._histories.end(reservation, outcome, now=now)
        saved_ms = expected_ms = 0.0
        if worker is not None:
            expected_ms = self._missed_ms(reservation, outcome, worker)
            decoding = reservation.first_byte_at is not None
            rate = worker.rate.tokens_per_s
            worker.load.release(reservation.prefill_work, tokens_per_s=rate, now=now, decoding=decoding)
            worker.burden = None
            pool = self._fleet.pools.get(worker.pool)
            if pool is not None and pool.by_id.get(worker.id) is worker:
                pool.outstanding -= 1
                if pool.order is not None:
                    pool.reorder(worker)
                if decoding:
                    self._heat_reply(reservation, pool, now)
            self._learn(reservation, outcome, worker, pool, now)
            self._note_reply(reservation, outcome, worker, pool, now)
            if outcome.cached_tokens:
                saved = outcome.cached_tokens if pool is None else _work(pool, 0, outcome.cached_tokens)
                saved_ms = saved / worker.rate.tokens_per_s * 1000.0
        return Assessment(
            decision.predicted_hit_tokens,
            saved_ms,
            verdict.isolation,
            verdict.bound_tokens,
            verdict.evidence or (self._histories.evidence(reservation) if expected_ms else ""),
            expected_ms,
        )

    def _end_expectation(
        self, reservation: Reservation, expectation: Expectation, outcome: Outcome, now: float
    ) -> None:
        """The prompt was read where an answer began; where none did, nobody will tell of its blocks."""
        if outcome.ok:
            self._expected.read(expectation, now=now)
        elif reservation.first_byte_at is None:
            self._expected.drop(expectation)

    def _verdict(self, reservation: Reservation, outcome: Outcome) -> Verdict:
        """On isolation; cached tokens that only repeat those of a pull's source were judged there."""
        pulled, cached = reservation.pulled, outcome.cached_tokens
        if pulled is not None and cached is not None and cached <= reservation.pulled_tokens:
            return Verdict(pulled.isolation, pulled.isolation_bound_tokens, pulled.evidence)
        return self._histories.assess(reservation, outcome, self._history_complete)

    def _missed_ms(self, reservation: Reservation, outcome: Outcome, worker: RoutableWorker) -> float:
        """Milliseconds that the answer should have taken, where it came too soon for its own words; else 0."""
        seconds = took_s(reservation, outcome)
        if seconds is None or reservation.decision.source is not None:
            return 0.0
        prompt, cached = outcome.prompt_tokens or 0, outcome.cached_tokens or 0
        pool = self._fleet.pools.get(worker.pool)
        work = max(prompt - cached, 0)
        expected = expected_s(work_tokens=work if pool is None else _work(pool, cached, work), rate=worker.rate)
        return expected * 1000.0 if expected is not None and seconds * FACTOR < expected else 0.0

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

    def worker_probed(self, worker: WorkerId, probe: Probe) -> bool:
        """Take what health probes show (A5, A9); whether the worker gets nothing for it."""
        return self._fleet.note_probe(worker, probe)

    def worker_forgotten(self, worker: WorkerId) -> None:
        """The worker restarted or cleared its cache: nothing is thought to be cached there any more."""
        self._index.wipe(worker)
        self._expected.forget_worker(worker)
        self._sessions.forget_worker(worker)
        self._hints.worker_emptied(worker)

    def state(self, *, now: float) -> TableState:
        workers = self._fleet.workers.values()
        return TableState(
            worker_states={worker.id: self._worker_state(worker, now) for worker in workers},
            worker_outstanding={worker.id: worker.load.outstanding for worker in workers},
            worker_prefill_tokens_per_s={worker.id: worker.rate.tokens_per_s for worker in workers},
            worker_credit={worker.id: worker.credit.share for worker in workers},
            calibration={str(worker.id): _calibration(worker, now) for worker in workers},
            panicking_pools=[pool.id for pool in self._fleet.pools.values() if pool.panics(now)],
            index_blocks=self._index.blocks,
            index_bytes=self._index.size_bytes,
            sessions=len(self._sessions),
        )

    def blocks_by_tenant(self) -> dict[TenantId, int]:
        """Remembered blocks of approximate mode."""
        return self._index.blocks_by_tenant()

    def _view(self, request: RoutingRequest, pool: Pool, now: float) -> View:
        matched: dict[WorkerId, int] = {}
        exact = request.exact
        if request.fingerprint is not None and (exact is None or exact.unknown):
            found = self._index.matches(request.grant.owner, request.fingerprint.hashes)
            if found:
                matched = dict(found)
            if self._other_routers != 0:
                self._add_hints(matched, request.grant.owner, request.fingerprint.hashes, now)
        others = self._other_routers
        spread = self._placements.homes(request, now=now)
        return view_of(
            request,
            pool,
            matched,
            now=now,
            alone=others == 0,
            routers=1 + (others or 0),
            spread=spread,
            expected=NOTHING_EXPECTED if exact is None else self._expected.found(exact.block_hashes, now=now),
        )

    def _add_hints(self, matched: dict[WorkerId, int], owner: TenantId, hashes: list[int], now: float) -> None:
        """What others sent where, where it is more than this router knows of."""
        best = max(matched.values(), default=0)
        for worker, blocks in self._hints.holders(owner, hashes, beyond=best, now=now).items():
            if worker in self._fleet.workers:
                matched[worker] = blocks

    def drain_heat(self, *, now: float) -> list[PrefixHeat]:
        """Hot prefixes since the last call, hottest first."""
        pools = self._fleet.pools
        counted = [count for count in self._heat.drain() if count.pool in pools]
        return [self._heat.row(count, pools[count.pool], self._index, now=now) for count in counted]

    def _count_prefix(self, decision: Decision, pool: Pool) -> None:
        request = decision.request
        if request.exact is not None:
            first = first_blocks(request, pool)
            self._heat.count(decision, request.exact.block_hashes, first, float(pool.policy.block_size))
        elif request.fingerprint is not None:
            tokens_a_block = request.fingerprint.block_bytes / pool.text.bytes_per_token
            self._heat.count(decision, request.fingerprint.hashes, HOME_BLOCKS, tokens_a_block)

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
                member.heat_requests *= decay
            pool.heat_ms *= decay
            pool.heat_requests *= decay
            pool.heat_started_at, age_s = now, 0.0
            pool.take_foreign()
        grown = 2.0 ** (age_s / HEAT_HALF_LIFE_S)
        worker.heat_ms += load_ms * grown
        pool.heat_ms += load_ms * grown
        worker.heat_requests += grown
        pool.heat_requests += grown

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
        if outcome.ok and reservation.decision.source is not None:
            return  # what was computed for it is charged to the source's reservation
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
                self._index.evicted_at(grant.owner),
                self._histories.forgotten_at,
                self._histories.leaves_forgotten_at,
                self._others_seen_at,
            ],
            other_routers=self._other_routers,
        )

    def _learn(
        self, reservation: Reservation, outcome: Outcome, worker: RoutableWorker, pool: Pool | None, now: float
    ) -> None:
        decision = reservation.decision
        fingerprint = decision.request.fingerprint
        if not outcome.ok:
            if reservation.first_byte_at is None and fingerprint is not None:
                # Refused or never reached: what this request would have added was not cached.
                self._index.disbelieve(
                    decision.request.grant.owner,
                    fingerprint.hashes,
                    decision.worker,
                    from_block=_matched_blocks(decision, fingerprint),
                )
            return
        if outcome.prompt_tokens is not None and pool is not None and fingerprint is not None:
            pool.text.observe(text_bytes=fingerprint.text_bytes, prompt_tokens=outcome.prompt_tokens)
        if decision.source is not None:
            return  # its prefill ran on the source, whose own reservation taught what there was to learn
        if outcome.cached_tokens is not None and decision.predicted_hit_tokens:
            worker.credit.observe(
                predicted_tokens=decision.promised_tokens(outcome.cached_tokens), delivered_tokens=outcome.cached_tokens
            )
        if reservation.first_byte_at is not None:
            self._learn_rate(reservation, outcome, worker, pool, now)
        elif pool is not None:
            self._learn_least_rate(reservation, outcome, worker, pool, now)

    def _learn_rate(
        self, reservation: Reservation, outcome: Outcome, worker: RoutableWorker, pool: Pool | None, now: float
    ) -> None:
        """Prefill from when the worker was free for the request to its first byte."""
        assert reservation.first_byte_at is not None
        seconds = reservation.first_byte_at - reservation.prefill_began_at
        if seconds <= 0.0 and reservation.prefill_began_at == reservation.reserved_at:
            return  # nothing was waited for: the clock did not move
        prompt, cached = outcome.prompt_tokens, outcome.cached_tokens
        work = reservation.prefill_work
        if prompt is not None and cached is not None and pool is not None:
            work = _work(pool, cached, max(prompt - cached, 0))
            if reservation.alone:
                rate = worker.rate.tokens_per_s
                pool.attention.observe(prompt_tokens=prompt, cached_tokens=cached, seconds=seconds, tokens_per_s=rate)
        self._fleet.observe_rate(worker, work_tokens=work + reservation.ahead_work, seconds=seconds, now=now)

    def _learn_least_rate(
        self, reservation: Reservation, outcome: Outcome, worker: RoutableWorker, pool: Pool, now: float
    ) -> None:
        """An answer that came whole: its prefill took no longer than all of it. So the worker is at least that fast,
        and where nothing is streamed, nothing else tells. It teaches the rate that the worker shares with its pool
        until it has a first byte of its own: as bounds, a few answers tell no worker from another."""
        prompt, cached = outcome.prompt_tokens, outcome.cached_tokens
        if prompt is None or cached is None:
            return
        work, seconds = _work(pool, cached, max(prompt - cached, 0)), now - reservation.reserved_at
        if 0.0 < seconds < work / worker.rate.tokens_per_s:
            worker.rate.observe(work_tokens=work, seconds=seconds)

    def _worker_state(self, worker: RoutableWorker, now: float) -> str:
        if worker.state == "down" or (worker.state == "ready" and worker.health.ejected(now)):
            return "ejected"
        if worker.state != "ready":
            return worker.state
        pool = self._fleet.pools.get(worker.pool)
        return "full" if pool is not None and worker.watermarks.full(pool.policy.watermark) else "ready"


def _calibration(worker: RoutableWorker, now: float) -> Calibration:
    if not worker.rate_seen_at:
        return Calibration(worker.rate.tokens_per_s, credit=worker.credit.share)
    age_s = max(now - worker.rate_seen_at, 0.0)
    return Calibration(worker.rate.tokens_per_s, worker.rate.samples, age_s, worker.credit.share)


def _work(pool: Pool, cached_tokens: int, tokens: int) -> int:
    """Prefill of `tokens` behind cached ones, see `Attention.work`."""
    work = pool.attention.work
    return int(work(cached_tokens + tokens) - work(cached_tokens))


def _matched_blocks(decision: Decision, fingerprint: Fingerprint) -> int:
    """Blocks of the fingerprint that the worker held before; of an exact prompt, those its own hits cover."""
    if decision.request.exact is None:
        return decision.matched_blocks
    held_tokens = decision.predicted_hit_tokens
    if decision.source is not None:
        held_tokens -= decision.loaded_tokens
    return len(fingerprint.hashes) * held_tokens // max(decision.predicted_prompt_tokens, 1)
