"""The routable workers, by pool: each worker's policy state beside everything learnt about it.

Replaced level-triggered from snapshots: a worker that stays keeps its load, rate, credit and health.
`apply` is O(workers), plus O(P log P) for the ring of a pool whose members changed (P = its ring points).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from router.contract.ids import PoolId, WorkerId
from router.contract.live import LIVE_STALE_AFTER_S, KvLive, WorkerLive
from router.contract.snapshot import PolicySnapshot, PoolPolicy, Watermark, WorkerEntry, WorkerState
from router.core.ejection import PANIC_SHARE, Ejection
from router.core.hot import HotPrefixes
from router.core.ledger import Load
from router.core.order import WaitOrder
from router.core.peers import PeerLoad, PeerLoads
from router.core.rates import PREFILL_TOKENS_PER_S_DEFAULT, Attention, Credit, PrefillRate, TextRatio
from router.core.ring import Ring
from router.core.transfer import Link
from router.core.watermarks import Watermarks, churn_pressure, watermark_use

SCAN_WORKERS_MAX: Final = 32
"""Pools up to this size are scored worker by worker (about 20 µs); larger ones keep their workers in order of wait."""
HOMES_MAX: Final = 512
"""Sets of homes remembered for each pool; a pool of 512 workers takes 16 KB for its largest."""
REQUEST_WAIT_MS: Final = 1.5
"""What a request under way adds to a worker's wait beside its prefill, for that order."""

Probe = Literal["up", "silent", "down"]
"""What health probes show: an answer, none in time, or a refusal."""
_MEANT_TO_SERVE = ("ready", "down")


Burden = tuple[float, float, float, float, float, float, float, float, float, float]
"""Of one worker: requests under way, weight of a miss beside them, wait for decoding in ms, prefill work ahead in
tokens (most, less the progress, least), when that was, free tokens, heat in ms, requests of late. See `score.py`."""


@dataclass(slots=True, eq=False)
class RoutableWorker:
    """One worker as the choice sees it."""

    id: WorkerId
    pool: PoolId
    url: str
    state: WorkerState | Literal["down"]
    """`down`: it would be ready, but its health probes say otherwise. Settled by its pool."""
    joined_at: float
    """When this router first knew the worker: it sent nothing there before."""
    rate: PrefillRate
    rate_seen_at: float = 0.0
    """When a first byte last taught it; 0 = never."""
    probe: Probe = "up"
    load: Load = field(default_factory=Load)
    credit: Credit = field(default_factory=Credit)
    health: Ejection = field(default_factory=Ejection)
    watermarks: Watermarks = field(default_factory=Watermarks)
    heat_ms: float = 0.0
    """Uncached prefill given to the worker, in the forward-decayed unit of its pool (`choice.HotSpots`)."""
    heat_requests: float = 0.0
    """Requests given to the worker, in the same unit."""
    churn: float = 0.0
    """Churn pressure 0…1 of the last fresh KV sample; 0 while unknown."""
    foreign_requests: float = 0.0
    """Requests on the worker that are not this router's: the more of what peers tell and what the last sample shows."""
    peer_requests: float = 0.0
    peer_tokens: float = 0.0
    """Prefill work of peers' requests that wait for their first byte."""
    polled_requests: int = 0
    """Requests on the worker beyond our own, by the last fresh sample."""
    capacity_tokens: int | None = None
    """KV tokens its cache has room for, None while unknown."""
    free_tokens: float = math.inf
    """Room that is believed to hold nothing; infinite while the capacity is unknown."""
    reuse: float = 0.0
    """Expected reuse of what a prefix beyond the free room evicts, 0…1; copies elsewhere make it less."""
    measured_reuse: float = 0.0
    """What its own evictions taught, as it was last taken into the pool's mean."""
    burden: Burden | None = None
    """Remembered by the score; None after every change of what it is made from."""
    place: int = 0
    """In its pool's list."""
    sampled_outstanding: int = 0
    """Own outstanding requests at the last sample: the worker's gauges lag behind them."""
    started_at: float | None = None
    cache_epoch_at: float | None = None


@dataclass(slots=True, eq=False)
class Pool:
    id: PoolId
    policy: PoolPolicy
    rate: PrefillRate
    """Of its typical worker: every worker's samples teach it."""
    workers: list[RoutableWorker]
    ring: Ring
    hot: HotPrefixes
    by_id: dict[WorkerId, RoutableWorker] = field(default_factory=dict)
    serving: list[RoutableWorker] = field(default_factory=list)
    """The workers whose state is ready."""
    unwell: int = 0
    """Workers that should serve and whose probes do not say that they are up."""
    text: TextRatio = field(default_factory=TextRatio)
    attention: Attention = field(default_factory=Attention)
    turns: int = 0
    """Requests spread in turn so far: breaks ties and drives round robin."""
    outstanding: int = 0
    """Own requests under way on all of its workers."""
    foreign_requests: float = 0.0
    heat_ms: float = 0.0
    """Sum of its workers' `heat_ms`, in the same unit."""
    heat_requests: float = 0.0
    """Sum of its workers' `heat_requests`."""
    heat_started_at: float = 0.0
    ejected_until: float = 0.0
    """No worker is ejected from here on: spares the choice a look at each."""
    capacity_tokens: int | None = None
    """KV tokens of its smallest worker's cache, None while unknown."""
    reuse: float = 0.0
    """Mean of its workers' measured reuse: they serve the same traffic, and one worker's measure is a few quarters of a
    cache. Judged each by its own, the first whose quarter went unwanted would draw all new prefixes (C39)."""
    link: Link | None = None
    """What its connector can load, None without one."""
    pulls: Ejection = field(default_factory=Ejection)
    """Of pulls between its workers: after failures in a row none is tried for a while."""
    order: WaitOrder | None = None
    """Only of a pool that is too large to be scanned."""
    _full: dict[Watermark, frozenset[WorkerId]] = field(default_factory=dict)
    _homes: dict[int, tuple[int, list[WorkerId]]] = field(default_factory=dict)
    """Ring key → (homes asked for, the homes)."""

    def take_members(self, members: list[RoutableWorker]) -> None:
        """Set the workers and what is derived from them."""
        self.workers = members
        self._settle_health()
        self.by_id = {worker.id: worker for worker in members}
        self.serving = [worker for worker in members if worker.state == "ready"]
        self.outstanding = sum(worker.load.outstanding for worker in members)
        self.heat_ms = sum(worker.heat_ms for worker in members)
        self.heat_requests = sum(worker.heat_requests for worker in members)
        self.link = _link(self.policy)
        capacities = [worker.capacity_tokens for worker in members if worker.capacity_tokens]
        self.capacity_tokens = min(capacities, default=None)
        self._homes.clear()
        self.order = WaitOrder(len(members)) if len(members) > SCAN_WORKERS_MAX else None
        for place, worker in enumerate(members):
            worker.place = place
        self.take_samples()

    def take_samples(self) -> None:
        """The workers' live figures changed."""
        self._full.clear()
        self.take_foreign()

    def take_foreign(self) -> None:
        """What others put on the workers changed, or the unit of heat."""
        self.foreign_requests = sum(worker.foreign_requests for worker in self.workers)
        for worker in self.workers:
            worker.burden = None
            self.reorder(worker)

    def reorder(self, worker: RoutableWorker) -> None:
        """The worker's load changed. O(log W), nothing in a small pool."""
        if self.order is not None:
            load = worker.load
            wait_ms = (load.pending_tokens + worker.peer_tokens) / worker.rate.tokens_per_s * 1000.0
            wait_ms += (load.outstanding + worker.foreign_requests) * REQUEST_WAIT_MS
            self.order.put(worker.place, wait_ms=wait_ms, heat_ms=worker.heat_ms)

    def full(self, watermark: Watermark) -> frozenset[WorkerId]:
        """The workers that take no new prefixes under this watermark; remembered until the next samples."""
        full = self._full.get(watermark)
        if full is None:
            full = frozenset(worker.id for worker in self.workers if worker.watermarks.full(watermark))
            self._full[watermark] = full
        return full

    def homes(self, key: int, count: int) -> Mapping[WorkerId, None]:
        """The first `count` serving workers on the ring from `key`, in that order: equal in every process. Remembered,
        since hot prefixes come often."""
        if count >= len(self.serving):
            key, count = 0, len(self.serving)
        asked, homes = self._homes.get(key, (0, []))
        if asked < count:
            # Their number follows the load and changes with every request: the ring is walked for more than are asked.
            asked = 1 << (count - 1).bit_length()
            homes = self.ring.homes(key, asked, lambda worker: self.by_id[worker].state == "ready")
            if len(self._homes) >= HOMES_MAX:
                self._homes.clear()
            self._homes[key] = asked, homes
        return dict.fromkeys(homes[:count])

    def panics(self, now: float) -> bool:
        """More than half of the workers that should serve are ejected, down or silent (A9)."""
        if now >= self.ejected_until and not self.unwell:
            return False
        meant = [worker for worker in self.workers if worker.state in _MEANT_TO_SERVE]
        unwell = sum(worker.probe != "up" or worker.health.ejected(now) for worker in meant)
        return unwell > PANIC_SHARE * len(meant)

    def _settle_health(self) -> None:
        """Who is down gets nothing. Who is silent gets nothing while another answers: where none does, the fault is
        hardly each worker's own (a busy machine, a lost network), and a slow answer is better than none."""
        meant = [worker for worker in self.workers if worker.state in _MEANT_TO_SERVE]
        any_up = any(worker.probe == "up" for worker in meant)
        for worker in meant:
            left = worker.probe == "down" or (worker.probe == "silent" and any_up)
            worker.state = "down" if left else "ready"
        self.unwell = sum(worker.probe != "up" for worker in meant)


class Fleet:
    def __init__(self, *, hot_prefixes_max: int) -> None:
        self._hot_prefixes_max = hot_prefixes_max
        self._peers = PeerLoads()
        self.pools: dict[PoolId, Pool] = {}
        self.workers: dict[WorkerId, RoutableWorker] = {}
        self._rates: dict[PoolId, PrefillRate] = {}
        self._faded_at: float | None = None

    def apply(self, snapshot: PolicySnapshot, *, now: float) -> set[WorkerId]:
        """Take the snapshot's pools and workers; returns the workers that left or were replaced under their id."""
        before = self.workers
        self._rates = {pool: self._rate(pool, policy) for pool, policy in snapshot.pools.items()}
        self.workers = {worker: self._kept(worker, entry, now) for worker, entry in snapshot.workers.items()}
        gone = {worker for worker, known in before.items() if self.workers.get(worker) is not known}
        self.pools = {pool: self._pool(pool, policy, now) for pool, policy in snapshot.pools.items()}
        scoped = {policy.watermark for policy in snapshot.namespaces.values() if policy.watermark is not None}
        in_force = {pool: scoped | {policy.watermark} for pool, policy in snapshot.pools.items()}
        for worker in self.workers.values():
            worker.watermarks.keep(in_force.get(worker.pool, scoped))
        return gone

    def apply_live(
        self, *, now: float, workers: Mapping[WorkerId, WorkerLive], kv: Mapping[WorkerId, KvLive]
    ) -> list[WorkerId]:
        """Take live samples; returns the workers that restarted or lost their cache since the last ones."""
        restarted: list[WorkerId] = []
        since_s, self._faded_at = max(0.0, now - (self._faded_at or now)), now
        for worker in self.workers.values():
            live, cache = workers.get(worker.id), kv.get(worker.id)
            if _note_births(worker, live, cache):
                restarted.append(worker.id)
            worker.watermarks.observe(watermark_use(live, cache, now=now), now=now)
            worker.churn = churn_pressure(cache, now=now) or 0.0
            shared = self._rates.get(worker.pool)
            if shared is not None and worker.rate is not shared:
                worker.rate.fade(shared, seconds=since_s)
            _note_foreign_requests(worker, live, now)
        self._take_peers(now)
        for pool in self.pools.values():
            pool.take_samples()
        return restarted

    def apply_peers(self, *, now: float, loads: Iterable[Mapping[WorkerId, PeerLoad]]) -> None:
        """Take what other routers put on the workers; replaces what they said before. O(routers × workers)."""
        self._peers.take(loads, now=now)
        self._take_peers(now)
        for pool in self.pools.values():
            pool.take_foreign()

    def fade_peers(self, now: float) -> None:
        """Let silent peers fade even when nothing arrives any more; one comparison while none does."""
        if self._peers.fading(now):
            self._take_peers(now)
            for pool in self.pools.values():
                pool.take_foreign()

    def _take_peers(self, now: float) -> None:
        sums = self._peers.sums(now=now)
        for worker in self.workers.values():
            worker.peer_tokens, worker.peer_requests = sums.get(worker.id, (0.0, 0.0))
            worker.foreign_requests = max(float(worker.polled_requests), worker.peer_requests)

    def note_probe(self, worker: WorkerId, probe: Probe) -> bool:
        """Take what a worker's health probes show; whether it gets nothing for it. O(W) at a change."""
        known = self.workers.get(worker)
        if known is None:
            return False
        pool = self.pools.get(known.pool)
        if known.probe != probe:
            known.probe = probe
            if pool is not None:
                pool.take_members(pool.workers)
        return known.state == "down"

    def observe_rate(self, worker: RoutableWorker, *, work_tokens: float, seconds: float, now: float) -> None:
        """A worker's prefill sample teaches its pool, and itself once it no longer shares the pool's rate."""
        shared = self._rates.get(worker.pool)
        if shared is None:
            return
        if worker.rate is shared:
            worker.rate = PrefillRate(shared.tokens_per_s)
        if worker.rate.observe(work_tokens=work_tokens, seconds=seconds):
            worker.rate_seen_at = now
        shared.observe(work_tokens=work_tokens, seconds=seconds)

    def _kept(self, worker: WorkerId, entry: WorkerEntry, now: float) -> RoutableWorker:
        known = self.workers.get(worker)
        if known is not None and known.pool == entry.pool and known.url == entry.url:
            known.state = entry.state
            known.capacity_tokens = entry.kv_capacity_tokens
            return known
        rate = self._rates.get(entry.pool) or PrefillRate()
        capacity_tokens = entry.kv_capacity_tokens
        return RoutableWorker(worker, entry.pool, entry.url, entry.state, now, rate, capacity_tokens=capacity_tokens)

    def _rate(self, pool: PoolId, policy: PoolPolicy) -> PrefillRate:
        known = self._rates.get(pool)
        return known or PrefillRate(policy.prefill_tokens_per_s or PREFILL_TOKENS_PER_S_DEFAULT)

    def _pool(self, pool: PoolId, policy: PoolPolicy, now: float) -> Pool:
        members = [worker for worker in self.workers.values() if worker.pool == pool]
        known = self.pools.get(pool)
        ring_stays = (
            known is not None
            and known.policy.virtual_nodes == policy.virtual_nodes
            and set(known.by_id) == {worker.id for worker in members}
        )
        if known is None:
            ring = Ring((), virtual_nodes=policy.virtual_nodes)
            hot = HotPrefixes(prefixes_max=self._hot_prefixes_max)
            known = Pool(pool, policy, self._rates[pool], members, ring, hot, heat_started_at=now)
        if not ring_stays:
            known.ring = Ring((worker.id for worker in members), virtual_nodes=policy.virtual_nodes)
        known.policy = policy
        known.take_members(members)
        return known


def _note_births(worker: RoutableWorker, live: WorkerLive | None, cache: KvLive | None) -> bool:
    """Take the start times of the worker's process and of its cache; whether either moved forward."""
    lost = False
    if live is not None and live.started_at is not None:
        lost |= worker.started_at is not None and live.started_at > worker.started_at + 1.0
        worker.started_at = live.started_at
    if cache is not None and cache.cache_epoch_at is not None:
        lost |= worker.cache_epoch_at is not None and cache.cache_epoch_at > worker.cache_epoch_at + 1.0
        worker.cache_epoch_at = cache.cache_epoch_at
    return lost


def _note_foreign_requests(worker: RoutableWorker, live: WorkerLive | None, now: float) -> None:
    """Requests beyond our own at this sample and at the one before, because gauges lag an engine step or two."""
    own = max(worker.load.outstanding, worker.sampled_outstanding)
    worker.sampled_outstanding = worker.load.outstanding
    worker.polled_requests = 0
    if live is not None and now - live.at <= LIVE_STALE_AFTER_S and live.running is not None:
        worker.polled_requests = max(0, live.running + (live.waiting or 0) - own)


def _link(policy: PoolPolicy) -> Link | None:
    if not policy.kv_bytes_per_token:
        return None
    gib_per_s = policy.transfer_gib_per_s
    remote = gib_per_s if gib_per_s is not None and gib_per_s > 0 else None
    return Link(policy.kv_bytes_per_token, remote, policy.transfer_setup_ms)
