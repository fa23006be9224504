"""Score: what sending a request to a worker gains and costs, every term in milliseconds (S1.4, S3.4).

net = saved − queue − pressure − imbalance − transfer − priority + replica
saved      cold prefill of this prompt on the pool's mean worker, less the prefill it still needs here; a token
           behind a long context takes longer (`rates.Attention`)
queue      wait for the prefill ahead (less its predicted progress), slowed by requests that decode
pressure   what a miss costs others: it delays those that come meanwhile and evicts what would be reused
imbalance  requests above the fair share, and uncached prefill given here lately above the pool's mean
transfer   loading what a host or shared tier holds, or pulling what another worker does (S3.5)
priority   what the namespace's priority adds to the queue or takes off (S4.2)
replica    the part of a miss, or of a pull, that fills another home of a hot prefix: it is for all that follow (S3.6)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from router.contract.telemetry import Candidate
from router.core.fleet import Burden, RoutableWorker
from router.core.ledger import PROGRESS_SHARE_MAX
from router.core.view import Terms, View

NET, SAVED, QUEUE, TRANSFER = 0, 1, 2, 5
"""Places in `Terms`."""

BESIDE_REQUESTS: Final = 4.0
"""Requests under way beside which a miss is charged half of its prefill once more, and never more than all of it: their
answers come slower meanwhile."""
DECODE_INTERFERENCE_MS: Final = 1.5
"""Delay of a prefill by each request that decodes beside it."""
IMBALANCE_SHARE: Final = 0.1
"""Part of a cold prefill charged for each request above the fair share or the red line."""


def score(view: View, worker: RoutableWorker) -> Terms:
    """The worker's terms, kept in the view."""
    terms = view.terms.get(worker.id)
    if terms is None:
        best_net(view, (worker,))
        terms = view.terms[worker.id]
    return terms


def best_net(view: View, workers: Iterable[RoutableWorker]) -> float:
    """Scores workers into `view.terms`; the best net gain in ms.

    One loop without calls, over what `_burden` remembers: it runs for each worker of each request.
    """
    terms_of, held, now, cold_ms = view.terms, view.held, view.now, view.cold_ms
    fair_outstanding, fair_heat_ms = view.fair_outstanding, view.fair_heat_ms
    coming, mean_requests = view.coming, view.mean_requests
    uncached_tokens, work = float(view.prompt_tokens), view.prompt_work
    special = bool(held) or bool(view.homes) or view.queue_weight != 1.0
    above_ms = IMBALANCE_SHARE * cold_ms + DECODE_INTERFERENCE_MS
    transfer = priority = replica = 0.0
    best = -math.inf
    for worker in workers:
        outstanding, beside, wait_ms, most, left, least, at, free, heat_ms, requests = worker.burden or _burden(worker)
        rate = worker.rate.tokens_per_s
        if special:
            uncached_tokens, work, transfer, replica = _found(view, worker)
        uncached_ms = work / rate * 1000.0
        queue = imbalance = 0.0
        if outstanding:
            left -= rate * (now - at)
            if left < least:
                left = least
            elif left > most:
                left = most
            queue = left / rate * 1000.0 + wait_ms
            if outstanding > fair_outstanding:
                imbalance = (outstanding - fair_outstanding) * above_ms
        if heat_ms > fair_heat_ms:
            imbalance += (heat_ms - fair_heat_ms) * view.hot_spot_factor
        # Requests come while it waits and while it computes, and those wait for half of it on average. A worker's own
        # count of late is scattered: the pool's mean has as much say. A copy that all need is not charged for it.
        delayed = (queue + 0.5 * uncached_ms) * 0.5 * (requests + mean_requests) * coming
        pressure = uncached_ms * beside
        if uncached_ms > replica:
            pressure += (uncached_ms - replica) * delayed
        if uncached_tokens > free:
            pressure += uncached_ms * _evicted_share(worker, uncached_tokens)
        saved = cold_ms - uncached_ms
        net = saved - queue - pressure - imbalance
        if special:
            priority = queue * (view.queue_weight - 1.0)
            net = net - transfer - priority + replica
        terms_of[worker.id] = (net, saved, queue, pressure, imbalance, transfer, priority, replica)
        if net > best:
            best = net
    return best


def _burden(worker: RoutableWorker) -> Burden:
    """What of a worker's score is the same for every request until its load or its samples change."""
    load, foreign = worker.load, worker.foreign_requests
    pending, outstanding = load.pending_tokens, load.outstanding + foreign
    burden = worker.burden = (
        outstanding,
        worker.churn + outstanding / (outstanding + BESIDE_REQUESTS),
        (load.decoding + foreign) * DECODE_INTERFERENCE_MS,
        # `Load.remaining_tokens` and the peers' tokens, but for the progress since `progress_at`.
        pending + worker.peer_tokens,
        pending - load.progress_tokens + worker.peer_tokens,
        pending * (1.0 - PROGRESS_SHARE_MAX) + worker.peer_tokens,
        load.progress_at,
        worker.free_tokens,
        worker.heat_ms,
        worker.heat_requests,
    )
    return burden


def _found(view: View, worker: RoutableWorker) -> tuple[float, float, float, float]:
    """Uncached tokens, their work, and transfer and replica in ms: what depends on what the worker holds."""
    uncached_tokens, work, transfer, replica = float(view.prompt_tokens), view.prompt_work, 0.0, 0.0
    attention = view.pool.attention
    held_blocks, pulled = 0, False
    source = view.source
    if source is not None or worker.id in view.held:
        hit = view.reach(worker)
        held_blocks, transfer, pulled = hit.blocks, hit.transfer_ms, hit.pulled
        share = source.credit if pulled and source is not None else worker.credit.share
        cached_tokens = hit.tokens * share
        uncached_tokens -= cached_tokens
        work -= attention.work(cached_tokens)
    if held_blocks < view.head_blocks and worker.id in view.homes:
        lacks = attention.work(view.head_blocks * view.tokens_a_block) - attention.work(
            held_blocks * view.tokens_a_block
        )
        replica = lacks / worker.rate.tokens_per_s * 1000.0
        if pulled and replica > transfer:
            replica = transfer
    return uncached_tokens, work, transfer, replica


def predicted_ttft_ms(view: View, terms: Terms) -> float:
    """Queue, transfer and uncached prefill."""
    return terms[QUEUE] + terms[TRANSFER] + view.cold_ms - terms[SAVED]


def candidate(view: View, worker: RoutableWorker, excluded: str) -> Candidate:
    """The worker's terms for an explanation."""
    net, saved, queue, pressure, imbalance, transfer, priority, replica = score(view, worker)
    hit = view.reach(worker)
    return Candidate(
        worker=worker.id,
        matched_tokens=hit.tokens,
        pulled_tokens=hit.loaded_tokens if hit.pulled else 0,
        expected_tokens=hit.expected_tokens,
        saved_ms=saved,
        queue_ms=queue,
        pressure_ms=pressure,
        imbalance_ms=imbalance,
        transfer_ms=transfer,
        priority_ms=priority,
        replica_ms=replica,
        net_ms=net,
        outstanding=int(worker.load.outstanding + worker.foreign_requests),
        excluded=excluded,
        kv_use=worker.watermarks.use,
        prefill_tokens_per_s=worker.rate.tokens_per_s,
    )


def _evicted_share(worker: RoutableWorker, uncached_tokens: float) -> float:
    """Expected recomputation of what the miss evicts, as a share of its own prefill (S3.7), beyond the measured churn:
    the part above the free room times the reuse expected of what goes for it."""
    return max(0.0, worker.reuse * (1.0 - worker.free_tokens / uncached_tokens) - worker.churn)
