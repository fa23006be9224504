"""One English sentence with numbers for a decision that was chosen with `explain=True`."""

from __future__ import annotations

from typing import Final

from router.contract.telemetry import Candidate
from router.core.model import Decision

_CAUSE_OF_SPILL: Final = {
    "watermark": "is above its watermark",
    "load": "would cost more in waiting than its cache saves",
    "drain": "is draining",
    "breaker": "is ejected after failures",
    "retry": "was tried before",
}


def sentence(decision: Decision) -> str:
    """Like "w2: holds 6,144 tokens, saves 310 ms of prefill for 40 ms of queue; least-loaded w4 would have …"."""
    parts = [_chosen(decision)]
    if decision.spill and decision.preferred is not None and decision.preferred != decision.worker:
        parts.append(f"preferred {_short(decision.preferred)} {_CAUSE_OF_SPILL[decision.spill]}")
    if decision.spread:
        parts.append(f"a placement rule spreads its prefix over {decision.spread} workers")
    other = _alternative(decision)
    if other is not None:
        parts.append(_compared(decision, other))
    return "; ".join(parts) + "."


def _chosen(decision: Decision) -> str:
    name = _short(decision.worker)
    own = next((each for each in decision.candidates if each.worker == decision.worker), None)
    if decision.reason == "round_robin":
        return f"{name}: next in turn"
    if own is None and decision.source is not None:
        return f"{name}: pulls {decision.loaded_tokens:,} tokens from {_short(decision.source.worker)}"
    if own is None:
        return f"{name}: chosen by {decision.reason.replace('_', ' ')}"
    if decision.source is not None:
        return (
            f"{name}: pulls {own.pulled_tokens:,} tokens from {_short(decision.source.worker)} in"
            f" {own.transfer_ms:,.0f} ms, saves {own.saved_ms:,.0f} ms of prefill for {_queue(own)}"
        )
    if own.matched_tokens:
        loads = f", of which it loads {decision.loaded_tokens:,} in {own.transfer_ms:,.0f} ms" * (own.transfer_ms > 0)
        comes = f", of which {own.expected_tokens:,} are on their way to it" * (own.expected_tokens > 0)
        return (
            f"{name}: holds {own.matched_tokens:,} tokens{comes}{loads}, saves {own.saved_ms:,.0f} ms of prefill"
            f" for {_queue(own)}"
        )
    if own.replica_ms > 0:
        return f"{name}: takes another copy of a hot prefix, {_queue(own)}"
    if decision.reason == "home":
        return f"{name}: home of a prefix no worker holds, {_queue(own)}"
    return f"{name}: holds nothing of the prompt, {_queue(own)}, {own.outstanding} requests under way"


def _queue(candidate: Candidate) -> str:
    return f"{candidate.queue_ms:,.0f} ms of queue"


def _alternative(decision: Decision) -> Candidate | None:
    """The least-loaded eligible worker that was not chosen."""
    others = [each for each in decision.candidates if each.worker != decision.worker and not each.excluded]
    return min(others, key=lambda each: (each.outstanding, -each.net_ms), default=None)


def _compared(decision: Decision, other: Candidate) -> str:
    recomputed = max(decision.predicted_prompt_tokens - other.matched_tokens, 0)
    return f"least-loaded {_short(other.worker)} would have recomputed {recomputed:,} tokens for {_queue(other)}"


def _short(worker: str) -> str:
    """The worker's slug without its pool: a decision never leaves one pool."""
    return worker.rpartition("/")[2]
