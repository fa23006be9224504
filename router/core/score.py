"""Score: what sending a request to a worker gains and costs, every term in milliseconds (S1.4, S3.4).

net = saved − queue − pressure − imbalance − transfer − priority + replica
saved      cold prefill of this prompt on the pool's mean worker, less the prefill it still needs here
queue      wait for the prefill ahead (less its predicted progress), slowed by requests that decode
pressure   what a miss costs others: it delays requests under way and evicts what they would reuse
imbalance  requests above the fair share, and uncached prefill given here lately above the pool's mean
transfer   loading what a host or shared tier holds (S3.5)
priority   what the namespace's priority adds to the queue or takes off (S4.2)
replica    the part of a miss that fills another home of a hot prefix: it is for all that follow (S3.6)
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from router.contract.telemetry import Candidate
from router.core.fleet import RoutableWorker
from router.core.ledger import PROGRESS_SHARE_MAX
from router.core.view import Terms, View

NET, SAVED, QUEUE, TRANSFER = 0, 1, 2, 5
"""Places in `Terms`."""

MISS_WEIGHT = 3.0
"""A miss on a busy worker is charged up to four times its own prefill (its own once, and this): in a fleet
simulation over public traces that raised goodput by 10 % over counting its own latency alone."""
BUSY_REQUESTS = 4.0
"""Requests under way at which a worker counts as half busy."""
DECODE_INTERFERENCE_MS = 1.5
"""Delay of a prefill by each request that decodes beside it."""
IMBALANCE_SHARE = 0.1
"""Part of a cold prefill charged for each request above the fair share or the red line."""

PROGRESS_LEFT = 1.0 - PROGRESS_SHARE_MAX


def score(view: View, worker: RoutableWorker) -> Terms:
    """The worker's terms, kept in the view."""
    terms = view.terms.get(worker.id)
    if terms is None:
        best_net(view, (worker,))
        terms = view.terms[worker.id]
    return terms


def best_net(view: View, workers: Iterable[RoutableWorker]) -> float:
    """Scores workers into `view.terms`; the best net gain in ms.

    One loop without calls: it runs once for each worker of each request, and is a quarter of the core's work.
    """
    terms_of, now, prompt_tokens, cold_ms = view.terms, view.now, view.prompt_tokens, view.cold_ms
    held, homes, fair_heat_ms = view.held, view.homes, view.fair_heat_ms
    fair_outstanding, priority_weight = view.fair_outstanding, view.queue_weight - 1.0
    best = -math.inf
    for worker in workers:
        load = worker.load
        rate = worker.rate.tokens_per_s
        uncached_tokens: float = prompt_tokens
        queue = imbalance = transfer = priority = replica = 0.0
        held_blocks = 0
        if held and worker.id in held:
            hit = view.hit(worker)
            held_blocks, transfer = hit.blocks, hit.transfer_ms
            uncached_tokens -= hit.tokens * worker.credit.share
        uncached_ms = uncached_tokens / rate * 1000.0
        if uncached_tokens <= worker.free_tokens:
            pressure = uncached_ms * worker.churn
        else:
            pressure = uncached_ms * _evicted_share(worker, uncached_tokens)
        outstanding = load.outstanding + worker.foreign_requests
        if outstanding:
            waiting = worker.peer_tokens
            if pending := load.pending_tokens:
                # `Load.remaining_tokens`, without the call.
                left = pending - (load.progress_tokens + rate * (now - load.progress_at))
                waiting += max(left, PROGRESS_LEFT * pending) if left < pending else pending
            queue = waiting / rate * 1000.0 + (load.decoding + worker.foreign_requests) * DECODE_INTERFERENCE_MS
            if priority_weight:
                priority = queue * priority_weight
            pressure += uncached_ms * MISS_WEIGHT * outstanding / (outstanding + BUSY_REQUESTS)
            if outstanding > fair_outstanding:
                above = outstanding - fair_outstanding
                imbalance = above * (IMBALANCE_SHARE * cold_ms + DECODE_INTERFERENCE_MS)
        if worker.heat_ms > fair_heat_ms:
            imbalance += (worker.heat_ms - fair_heat_ms) * view.hot_spot_factor
        if homes and held_blocks < view.head_blocks and worker.id in homes:
            replica = (view.head_blocks - held_blocks) * view.tokens_a_block / rate * 1000.0
        saved = cold_ms - uncached_ms
        net = saved - queue - pressure - imbalance - transfer - priority + replica
        terms_of[worker.id] = (net, saved, queue, pressure, imbalance, transfer, priority, replica)
        if net > best:
            best = net
    return best


def predicted_ttft_ms(view: View, terms: Terms) -> float:
    """Queue, transfer and uncached prefill."""
    return terms[QUEUE] + terms[TRANSFER] + view.cold_ms - terms[SAVED]


def candidate(view: View, worker: RoutableWorker, excluded: str) -> Candidate:
    """The worker's terms for an explanation."""
    net, saved, queue, pressure, imbalance, transfer, priority, replica = score(view, worker)
    return Candidate(
        worker=worker.id,
        matched_tokens=view.hit(worker).tokens,
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
    )


def _evicted_share(worker: RoutableWorker, uncached_tokens: float) -> float:
    """Expected recomputation of what the miss evicts, as a share of its own prefill (S3.7): the part beyond the free
    room times the reuse expected of what goes for it, or the measured churn where that is more."""
    free_tokens = worker.free_tokens
    if uncached_tokens <= free_tokens:
        return worker.churn
    return max(worker.churn, worker.reuse * (1.0 - free_tokens / uncached_tokens))
