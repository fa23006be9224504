"""Filter → Score → Pick: which worker serves a request.

Filter   workers of the pool that are ready, not ejected (unless most are), not tried before, and not above the
         watermark, which only turns away prompts the worker does not already hold for the most part.
Score    milliseconds, for each worker:
         net = saved − queue − pressure − imbalance
         saved      cold prefill of this prompt on the pool's mean worker, less the prefill it still needs here
         queue      wait for the prefill ahead (less its predicted progress), slowed by requests that decode
         pressure   what a miss costs others: it delays requests under way and evicts what they would reuse
         imbalance  requests above the fair share, and uncached prefill given here lately above the pool's mean
Pick     the worker that affinity prefers (session, else longest prefix, else home on the ring), unless another is
         better by more than a margin: then waiting costs more than the cache saves (S4.3, S3.4).

Cost: O(workers of the pool) plus the index lookup. Nothing is allocated a candidate beyond one tuple.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from router.contract.ids import WorkerId
from router.contract.telemetry import Candidate
from router.core.fleet import Pool, RoutableWorker
from router.core.model import Decision, NoWorker, RoutingRequest

MISS_WEIGHT = 3.0
"""A miss on a busy worker is charged up to four times its own prefill (its own once, and this): in a fleet
simulation over public traces that raised goodput by 10 % over counting its own latency alone."""
BUSY_REQUESTS = 4.0
"""Requests under way at which a worker counts as half busy."""
DECODE_INTERFERENCE_MS = 1.5
"""Delay of a prefill by each request that decodes beside it."""

FAIR_SHARE = 1.25
"""Requests under way above this multiple of the pool's mean are imbalance."""
FAIR_REQUESTS = 2.0
"""Requests above it that are still fair: at low load counts mean little."""
IMBALANCE_SHARE = 0.1
"""Part of a cold prefill charged for each request above the fair share or the red line."""
HOT_SPOT_SHARE = 0.05
"""Part of the uncached prefill given lately above the pool's mean that is charged: spreads what saves little (C37)."""
HEAT_HALF_LIFE_S = 60.0

MARGIN_SHARE = 0.05
MARGIN_MS = 1.0
"""Affinity yields only to a gain above 1 ms and above 5 % of a cold prefill: below that estimates are noise."""
HOME_MARGIN_SHARE = 0.25
"""The home of a new prefix saves nothing yet: it is kept, so that routers agree, unless another is a quarter better."""
MATCH_SHARE_MIN = 0.1
"""A match of less of the prompt is a common head, not affinity (C37): it still counts for what it saves."""
HELD_SHARE = 0.5
"""A full worker may still serve a prompt of which it holds at least this share (S0.4)."""
HOME_BLOCKS = 4
"""Depth at which a prefix gets its home on the ring: the turns of a conversation agree on their first 2 KiB."""
UNKNOWN_PROMPT_TOKENS = 1000
"""Assumed of a prompt without text (images, token ids)."""

RETRY_AFTER_BUSY_S = 2
RETRY_AFTER_EMPTY_S = 10

Terms = tuple[float, float, float, float]
"""saved, queue, pressure and imbalance in ms."""


@dataclass(slots=True)
class View:
    """What one choice knows: the request beside the pool's means at this moment. Built by `view_of`."""

    request: RoutingRequest
    pool: Pool
    now: float
    matched: dict[WorkerId, int]
    """Blocks of the prompt each worker is thought to hold."""
    blocks: int
    prompt_tokens: int
    tokens_a_block: float
    cold_ms: float
    """Prefill of the whole prompt on the pool's typical worker."""
    full: frozenset[WorkerId]
    fair_outstanding: float
    """Requests under way above which a worker is charged for imbalance."""
    fair_heat_ms: float
    hot_spot_factor: float
    ignore_ejection: bool


def view_of(request: RoutingRequest, pool: Pool, matched: dict[WorkerId, int], *, now: float) -> View:
    """`matched`: blocks of the prompt by worker, as the index says."""
    fingerprint = request.fingerprint
    tokens, tokens_a_block = UNKNOWN_PROMPT_TOKENS, 0.0
    if fingerprint is not None:
        tokens = max(pool.text.tokens(fingerprint.text_bytes), 1)
        tokens_a_block = fingerprint.block_bytes / pool.text.bytes_per_token
    members = max(len(pool.serving), 1)
    return View(
        request=request,
        pool=pool,
        now=now,
        matched=matched,
        blocks=len(fingerprint.hashes) if fingerprint is not None else 0,
        prompt_tokens=tokens,
        tokens_a_block=tokens_a_block,
        cold_ms=tokens / pool.rate.tokens_per_s * 1000.0,
        full=pool.full(request.grant.policy.watermark or pool.policy.watermark),
        fair_outstanding=_fair_outstanding(pool, members),
        fair_heat_ms=pool.heat_ms / members,
        hot_spot_factor=HOT_SPOT_SHARE * 2.0 ** ((pool.heat_started_at - now) / HEAT_HALF_LIFE_S),
        ignore_ejection=now >= pool.ejected_until or pool.panics(now),
    )


def _fair_outstanding(pool: Pool, members: int) -> float:
    """The pool's mean and a quarter more, but not above the red line unless the mean itself is (S2.3)."""
    mean = (pool.outstanding + pool.foreign_requests) / members
    return min(FAIR_SHARE * mean + FAIR_REQUESTS, max(float(pool.policy.spill_outstanding), mean))


def choose(view: View, session_worker: WorkerId | None, *, explain: bool) -> Decision:
    """The decision for one request. Raises NoWorker when the pool has none to offer."""
    eligible = _filter(view)
    decision = _PICKS[view.pool.policy.routing](view, eligible, session_worker)
    worker = view.pool.by_id[decision.worker]
    decision.matched_blocks = view.matched.get(worker.id, 0)
    decision.predicted_hit_tokens = _hit_tokens(view, worker)
    decision.predicted_prompt_tokens = view.prompt_tokens
    if view.request.exclude:
        decision.reason, decision.spill = "retry", "retry"
    if explain:
        decision.candidates = [_candidate(view, each) for each in view.pool.workers]
    return decision


def exclusion(view: View, worker: RoutableWorker) -> str:
    """The filter that turns the worker away: a state, `ejected`, `tried`, `full`, or "" for none."""
    if worker.state != "ready":
        return worker.state
    if worker.id in view.request.exclude:
        return "tried"
    if not view.ignore_ejection and worker.health.ejected(view.now):
        return "ejected"
    if worker.id in view.full and not _holds(view, worker):
        return "full"
    return ""


def score(view: View, worker: RoutableWorker) -> Terms:
    """The four terms of net gain, in ms."""
    load = worker.load
    rate = worker.rate.tokens_per_s
    outstanding = load.outstanding + worker.foreign_requests
    uncached_tokens = float(view.prompt_tokens)
    if view.matched:
        uncached_tokens -= _hit_tokens(view, worker) * worker.credit.share
    uncached_ms = uncached_tokens / rate * 1000.0
    pressure = uncached_ms * worker.churn
    queue = imbalance = 0.0
    if outstanding:
        queue = load.remaining_tokens(tokens_per_s=rate, now=view.now) / rate * 1000.0
        queue += (load.decoding + worker.foreign_requests) * DECODE_INTERFERENCE_MS
        pressure += uncached_ms * MISS_WEIGHT * outstanding / (outstanding + BUSY_REQUESTS)
        above = outstanding - view.fair_outstanding
        if above > 0:
            imbalance = above * (IMBALANCE_SHARE * view.cold_ms + DECODE_INTERFERENCE_MS)
    hot_ms = worker.heat_ms - view.fair_heat_ms
    if hot_ms > 0:
        imbalance += hot_ms * view.hot_spot_factor
    return view.cold_ms - uncached_ms, queue, pressure, imbalance


def _filter(view: View) -> list[RoutableWorker]:
    """Eligible workers. When every worker left is full, the watermark halts nothing (C51)."""
    serving = view.pool.serving
    if serving and view.ignore_ejection and not view.full and not view.request.exclude:
        return serving
    eligible = [worker for worker in serving if not exclusion(view, worker)]
    if not eligible and view.full:
        view.full = frozenset()
        eligible = [worker for worker in serving if not exclusion(view, worker)]
    if not eligible:
        retry_after_s = RETRY_AFTER_BUSY_S if view.pool.workers else RETRY_AFTER_EMPTY_S
        raise NoWorker("No worker is available for this model at the moment. Please retry.", retry_after_s)
    return eligible


def _pick_by_gain(view: View, eligible: list[RoutableWorker], session_worker: WorkerId | None) -> Decision:
    nets = [_net(view, worker) for worker in eligible]
    best = max(nets)
    preferred, reason = _preference(view, session_worker)
    margin = _margin_ms(view, reason)
    if preferred is not None and not exclusion(view, preferred) and _net(view, preferred) >= best - margin:
        return _decision(view, preferred, reason, preferred)
    near = [worker for worker, net in zip(eligible, nets, strict=True) if net >= best - margin]
    if preferred is None:
        return _decision(view, _least_loaded(view, near), "least_outstanding", None)
    spill = _spill(view, preferred)
    reason = "spill_watermark" if spill == "watermark" else "spill_load" if spill == "load" else reason
    return _decision(view, _best_of(view, near), reason, preferred, spill=spill)


def _margin_ms(view: View, reason: str) -> float:
    """How much better another worker must be than the one affinity prefers."""
    share = HOME_MARGIN_SHARE if reason == "home" else MARGIN_SHARE
    if reason == "session" and view.request.fingerprint is None:
        # What the session's worker holds cannot be matched without text: all of it is assumed.
        share = 1.0
    return max(MARGIN_MS, share * view.cold_ms)


def _preference(view: View, session_worker: WorkerId | None) -> tuple[RoutableWorker | None, str]:
    """Where affinity alone would send the request, and the reason: session, prefix, home (S2.1)."""
    by_id = view.pool.by_id
    if session_worker is not None and session_worker in by_id:
        return by_id[session_worker], "session"
    deepest = max(view.matched.values(), default=0)
    if deepest and deepest >= MATCH_SHARE_MIN * view.blocks:
        holders = [by_id[worker] for worker, blocks in view.matched.items() if blocks == deepest and worker in by_id]
        usable = holders if len(holders) == 1 else [worker for worker in holders if not exclusion(view, worker)]
        if usable or holders:
            return _least_loaded(view, usable or holders), "prefix"
    key = home_key(view, deepest)
    return (None if key is None else _home(view, key)), "home"


def home_key(view: View, shared_blocks: int) -> int | None:
    """The ring key of a prompt: HOME_BLOCKS deep, or just past a head that many prompts share; None below a block."""
    fingerprint = view.request.fingerprint
    if fingerprint is None or not fingerprint.hashes:
        return None
    depth = min(len(fingerprint.hashes), max(HOME_BLOCKS, shared_blocks + 1))
    return fingerprint.hashes[depth - 1]


def _home(view: View, key: int, takes: Callable[[RoutableWorker], bool] | None = None) -> RoutableWorker | None:
    by_id = view.pool.by_id
    home = view.pool.ring.home(key, None if takes is None else (lambda worker: takes(by_id[worker])))
    return None if home is None else by_id[home]


def _best_of(view: View, near: list[RoutableWorker]) -> RoutableWorker:
    """Of workers about equally good: the longest match, then the least load, then the next on the ring."""
    longest = max(view.matched.get(worker.id, 0) for worker in near)
    return _least_loaded(view, [worker for worker in near if view.matched.get(worker.id, 0) == longest])


def _least_loaded(view: View, workers: list[RoutableWorker]) -> RoutableWorker:
    """The fewest requests under way; equals by the ring from the prompt's key, or in turn without one (S0.7, C39)."""
    least = min(worker.load.outstanding + worker.foreign_requests for worker in workers)
    idle = [worker for worker in workers if worker.load.outstanding + worker.foreign_requests == least]
    if len(idle) == 1:
        return idle[0]
    key = home_key(view, 0)
    if key is None:
        return _in_turn(view, idle)
    return _home(view, key, lambda worker: worker in idle) or idle[0]


def _in_turn(view: View, workers: list[RoutableWorker]) -> RoutableWorker:
    worker = workers[view.pool.turns % len(workers)]
    view.pool.turns += 1
    return worker


def _pick_round_robin(view: View, eligible: list[RoutableWorker], _: WorkerId | None) -> Decision:
    return _decision(view, _in_turn(view, eligible), "round_robin", None)


def _pick_least_outstanding(view: View, eligible: list[RoutableWorker], _: WorkerId | None) -> Decision:
    least = min(worker.load.outstanding + worker.foreign_requests for worker in eligible)
    idle = [worker for worker in eligible if worker.load.outstanding + worker.foreign_requests == least]
    return _decision(view, _in_turn(view, idle), "least_outstanding", None)


def _pick_by_ring(view: View, eligible: list[RoutableWorker], _: WorkerId | None) -> Decision:
    """Pure consistent hashing of the first blocks: load moves nothing, an ineligible home goes to its successor."""
    key = home_key(view, 0)
    home = None if key is None else _home(view, key)
    if key is None or home is None:
        return _decision(view, _in_turn(view, eligible), "least_outstanding", None)
    if not exclusion(view, home):
        return _decision(view, home, "home", home)
    worker = _home(view, key, lambda each: not exclusion(view, each)) or eligible[0]
    spill = _spill(view, home)
    return _decision(view, worker, "spill_watermark" if spill == "watermark" else "home", home, spill=spill)


_PICKS = {
    "tidemark": _pick_by_gain,
    "round_robin": _pick_round_robin,
    "least_outstanding": _pick_least_outstanding,
    "ring": _pick_by_ring,
}

_SPILL_OF_EXCLUSION = {
    "drain": "drain",
    "maintenance": "drain",
    "ejected": "breaker",
    "full": "watermark",
    "tried": "retry",
}


def _spill(view: View, preferred: RoutableWorker) -> str:
    """Why the preferred worker was left: the filter that turned it away, else load."""
    return _SPILL_OF_EXCLUSION.get(exclusion(view, preferred), "load")


def _decision(
    view: View, worker: RoutableWorker, reason: str, preferred: RoutableWorker | None, *, spill: str = ""
) -> Decision:
    return Decision(
        request=view.request,
        worker=worker.id,
        url=worker.url,
        reason=reason,
        spill=spill,
        preferred=None if preferred is None else preferred.id,
    )


def _candidate(view: View, worker: RoutableWorker) -> Candidate:
    saved, queue, pressure, imbalance = score(view, worker)
    return Candidate(
        worker=worker.id,
        matched_tokens=_hit_tokens(view, worker),
        saved_ms=saved,
        queue_ms=queue,
        pressure_ms=pressure,
        imbalance_ms=imbalance,
        net_ms=saved - queue - pressure - imbalance,
        outstanding=worker.load.outstanding + worker.foreign_requests,
        excluded=exclusion(view, worker),
    )


def _net(view: View, worker: RoutableWorker) -> float:
    saved, queue, pressure, imbalance = score(view, worker)
    return saved - queue - pressure - imbalance


def _hit_tokens(view: View, worker: RoutableWorker) -> int:
    """Tokens of the prompt the worker is thought to hold; the last one is always computed."""
    blocks = view.matched.get(worker.id, 0)
    return min(int(blocks * view.tokens_a_block), max(view.prompt_tokens - 1, 0)) if blocks else 0


def _holds(view: View, worker: RoutableWorker) -> bool:
    blocks = view.blocks
    return blocks > 0 and view.matched.get(worker.id, 0) >= HELD_SHARE * blocks
