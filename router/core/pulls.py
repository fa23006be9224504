"""From which worker the others may pull a prompt's KV: one source a request, found before the workers are scored."""

from __future__ import annotations

from collections.abc import Iterable

from router.core.fleet import RoutableWorker
from router.core.score import QUEUE, score
from router.core.transfer import PULL_TOKENS_MIN, Source
from router.core.view import View


def source_of(view: View, holders: Iterable[RoutableWorker]) -> Source | None:
    """Of the eligible holders the one that saves most beyond its queue; None where nobody holds enough.

    Only what workers tell of themselves counts. Their blocks are named by hashes that begin with the namespace's salt,
    so a source holds the prompt under the same salt, or does not hold it (S2).
    """
    exact = view.request.exact
    if exact is None or view.pool.link is None:
        return None
    best, most_ms = None, 0.0
    for worker in holders:
        hit = view.hit(worker)
        tokens = hit.tokens - hit.expected_tokens
        if tokens >= PULL_TOKENS_MIN and worker.id not in exact.unknown:
            wait_ms = score(view, worker)[QUEUE]
            gain_ms = view.pool.attention.work(tokens) / worker.rate.tokens_per_s * 1000.0 - wait_ms
            if gain_ms > most_ms:
                best, most_ms = _source(view, worker, tokens, wait_ms), gain_ms
    # Scored without a source: once there is one, all are scored afresh.
    view.terms.clear()
    return best


def _source(view: View, worker: RoutableWorker, tokens: int, wait_ms: float) -> Source:
    work = view.prompt_work - view.pool.attention.work(tokens)
    answer_ms = wait_ms + work / worker.rate.tokens_per_s * 1000.0
    return Source(worker.id, worker.url, tokens, worker.credit.share, wait_ms, answer_ms)
