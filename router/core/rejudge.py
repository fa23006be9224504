"""A recorded decision, judged again under another policy by the same choice that routed it.

A record holds each worker as the choice saw it: what it held, its terms in ms, requests under way, KV use, rate. From
that the state of the pool at that moment is set up again, so that any policy can be asked what it would have chosen:

    queue       as prefill tokens ahead, at the recorded rate
    pressure    what a miss costs beyond the requests under way becomes churn
    imbalance   what counts do not explain becomes heat
    home        a ring key whose home is the worker that was preferred as home
    watermarks  fed with the recorded KV use, record by record, so that their hysteresis runs

Each record stands alone: what another choice would have left in the caches afterwards is not followed. Prompts do not
occur: a record has counts of tokens only. O(workers) a record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from router.contract.ids import KeyId, NamespaceId, PoolId, TenantId, WorkerId
from router.contract.snapshot import NamespacePolicy, PolicySnapshot
from router.contract.telemetry import Candidate, DecisionSample
from router.core import choice
from router.core.fleet import Fleet, Pool, RoutableWorker
from router.core.ledger import Load
from router.core.model import Fingerprint, Grant, RoutingError, RoutingRequest
from router.core.rates import BYTES_PER_TOKEN_DEFAULT, PrefillRate
from router.core.score import score
from router.core.view import HOT_SPOT_SHARE, View, view_of

BLOCK_TOKENS = 64
"""Records are in tokens; matches are rounded down to this."""
KEYS_TRIED_MAX = 4096
"""Keys drawn to find one whose home is a given worker: the pool's size on average."""
_HOT_PREFIXES_MAX = 16
_PRESSURE, _IMBALANCE, _QUEUE, _SAVED = 3, 4, 2, 1
"""Places in `Terms`."""
_GONE = frozenset(("drain", "maintenance", "ejected"))


@dataclass(frozen=True, slots=True)
class Judged:
    worker: WorkerId
    reason: str
    spill: str
    hit_tokens: int
    uncached_tokens: int
    ttft_ms: float
    """Predicted: queue, transfer and uncached prefill."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A pool at the moment of one record."""

    sample: DecisionSample
    workers: Mapping[WorkerId, Candidate]
    churn: Mapping[WorkerId, float]
    heat_ms: Mapping[WorkerId, float]
    tokens_ahead: Mapping[WorkerId, float]
    key: int
    """Stands for the prompt's prefix on the ring."""
    session_worker: WorkerId | None


class Unjudgeable(ValueError):
    """Why a record cannot be set up again: `no_candidates`, `retry`, `hot_prefix`, `pull`, `older_record`, `gone`."""


class Rejudge:
    """One policy's answers for one pool. Feed it records in the order of their time."""

    def __init__(self, snapshot: PolicySnapshot, pool: PoolId, *, alone: bool) -> None:
        """`snapshot`: settled, without variants. `alone`: whether one router served the pool.

        Raises KeyError for a pool that is not in it.
        """
        self._snapshot = snapshot
        self._alone = alone
        self._fleet = Fleet(hot_prefixes_max=_HOT_PREFIXES_MAX)
        self._fleet.apply(snapshot, now=0.0)
        self._pool: Pool = self._fleet.pools[pool]

    def scene(self, sample: DecisionSample) -> Scene:
        """The state behind a record, under the policy that was in force. Raises Unjudgeable."""
        workers = self._workers_of(sample)
        bare = Scene(sample, workers, {}, {}, _tokens_ahead(workers), self._key(sample), _session_worker(sample))
        view = self._set_up(bare)
        churn, heat, ahead = {}, {}, dict(bare.tokens_ahead)
        for worker_id, seen in workers.items():
            terms = score(view, self._pool.by_id[worker_id])
            churn[worker_id] = _left(seen.pressure_ms, terms[_PRESSURE]) / max(view.cold_ms - terms[_SAVED], 1e-9)
            heat[worker_id] = _left(seen.imbalance_ms, terms[_IMBALANCE]) / HOT_SPOT_SHARE
            if terms[_QUEUE] > 0:
                ahead[worker_id] *= seen.queue_ms / terms[_QUEUE]
        return Scene(sample, workers, churn, heat, ahead, bare.key, bare.session_worker)

    def judge(self, scene: Scene) -> Judged | None:
        """What this policy chooses there; None when it refuses the request."""
        view = self._set_up(scene)
        try:
            decision = choice.choose(view, scene.session_worker, explain=False)
        except RoutingError:
            return None
        hit_tokens = decision.predicted_hit_tokens
        return Judged(
            worker=decision.worker,
            reason=decision.reason,
            spill=decision.spill,
            hit_tokens=hit_tokens,
            uncached_tokens=max(view.prompt_tokens - hit_tokens, 0),
            ttft_ms=decision.predicted_ttft_ms,
        )

    def _workers_of(self, sample: DecisionSample) -> dict[WorkerId, Candidate]:
        if not sample.candidates:
            raise Unjudgeable("no_candidates")
        if sample.reason == "retry":
            raise Unjudgeable("retry")
        if any(seen.replica_ms > 0 for seen in sample.candidates):
            raise Unjudgeable("hot_prefix")
        if any(seen.pulled_tokens for seen in sample.candidates):
            raise Unjudgeable("pull")
        if any(seen.prefill_tokens_per_s <= 0 for seen in sample.candidates):
            raise Unjudgeable("older_record")
        known = {WorkerId(seen.worker): seen for seen in sample.candidates if seen.worker in self._pool.by_id}
        if WorkerId(sample.worker) not in known or NamespaceId(sample.namespace) not in self._snapshot.namespaces:
            raise Unjudgeable("gone")
        return known

    def _set_up(self, scene: Scene) -> View:
        pool, sample = self._pool, scene.sample
        for worker in pool.workers:
            _place(worker, scene)
        pool.rate.tokens_per_s = _mean_rate(scene.workers)
        pool.turns = scene.key
        pool.heat_started_at = sample.at
        pool.take_members(pool.workers)
        pool.heat_ms = 0.0  # the workers' heat is already above the mean
        matched = {
            worker: seen.matched_tokens // BLOCK_TOKENS
            for worker, seen in scene.workers.items()
            if seen.matched_tokens >= BLOCK_TOKENS
        }
        return view_of(self._request(scene), pool, matched, now=sample.at, alone=self._alone or sample.exact)

    def _request(self, scene: Scene) -> RoutingRequest:
        sample = scene.sample
        tokens = sample.predicted_prompt_tokens or sample.prompt_tokens or 0
        block_bytes = int(BLOCK_TOKENS * BYTES_PER_TOKEN_DEFAULT)
        text_bytes = int(tokens * BYTES_PER_TOKEN_DEFAULT)
        fingerprint = Fingerprint([scene.key] * (tokens // BLOCK_TOKENS), block_bytes, text_bytes)
        return RoutingRequest(request_id=sample.request_id, grant=self._grant(sample), fingerprint=fingerprint)

    def _grant(self, sample: DecisionSample) -> Grant:
        policy: NamespacePolicy = self._snapshot.namespaces[NamespaceId(sample.namespace)]
        return Grant(
            key=KeyId(""),
            tenant=TenantId(sample.tenant),
            namespace=NamespaceId(sample.namespace),
            policy=policy,
            pool=self._pool.id,
            model=sample.model,
            salt="",
        )

    def _key(self, sample: DecisionSample) -> int:
        """Of the request's own, the first whose home is the preferred worker; any where affinity was not the home."""
        wanted = WorkerId(sample.preferred) if _preferred_as_home(sample) else None
        ring = self._pool.ring
        for number in range(KEYS_TRIED_MAX):
            key = int.from_bytes(hashlib.blake2b(f"{sample.request_id}/{number}".encode(), digest_size=8).digest())
            if wanted is None or ring.home(key) == wanted:
                return key
        return key


def _place(worker: RoutableWorker, scene: Scene) -> None:
    """The worker as the record has it; one that the record lacks takes nothing."""
    seen = scene.workers.get(worker.id)
    worker.load = Load()
    worker.foreign_requests = 0.0
    worker.state = "maintenance"
    worker.heat_ms, worker.churn, worker.peer_tokens = 0.0, 0.0, 0.0
    if seen is None:
        return
    if seen.excluded not in _GONE:
        worker.state = "ready"
    worker.load.outstanding = seen.outstanding
    worker.peer_tokens = scene.tokens_ahead.get(worker.id, 0.0)
    worker.rate = PrefillRate(seen.prefill_tokens_per_s)
    worker.churn = scene.churn.get(worker.id, 0.0)
    worker.heat_ms = scene.heat_ms.get(worker.id, 0.0)
    worker.watermarks.observe(seen.kv_use, now=scene.sample.at)


def _tokens_ahead(workers: Mapping[WorkerId, Candidate]) -> dict[WorkerId, float]:
    return {worker: seen.queue_ms * seen.prefill_tokens_per_s / 1000.0 for worker, seen in workers.items()}


def _mean_rate(workers: Mapping[WorkerId, Candidate]) -> float:
    return sum(seen.prefill_tokens_per_s for seen in workers.values()) / len(workers)


def _left(recorded_ms: float, explained_ms: float) -> float:
    return max(recorded_ms - explained_ms, 0.0)


def _session_worker(sample: DecisionSample) -> WorkerId | None:
    return WorkerId(sample.preferred) if sample.reason == "session" and sample.preferred else None


def _preferred_as_home(sample: DecisionSample) -> bool:
    """The preferred worker held nothing of note, so it was preferred as the prefix's home."""
    if not sample.preferred or sample.reason in ("session", "prefix"):
        return False
    tokens = sample.predicted_prompt_tokens or sample.prompt_tokens or 0
    held = next((seen.matched_tokens for seen in sample.candidates if seen.worker == sample.preferred), 0)
    return held < choice.MATCH_SHARE_MIN * tokens
