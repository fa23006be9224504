"""The header that tells a key with the scope `explain` how its request was routed."""

from __future__ import annotations

from router.contract.telemetry import Candidate
from router.core.model import Decision

NAME = b"x-tidemark-decision"
_TERMS = ("saved_ms", "queue_ms", "pressure_ms", "imbalance_ms", "transfer_ms", "priority_ms", "replica_ms", "net_ms")


def decision_line(decision: Decision, *, retries: int) -> bytes:
    """A whole header line: worker, reason, tokens, predicted time, and the chosen worker's terms in milliseconds."""
    parts = [
        f"worker={decision.worker}",
        f"reason={decision.reason}",
        f"spill={decision.spill or 'none'}",
        f"hit_tokens={decision.predicted_hit_tokens}",
        f"prompt_tokens={decision.predicted_prompt_tokens}",
        f"ttft_ms={decision.predicted_ttft_ms:.1f}",
        f"retries={retries}",
    ]
    chosen = next((item for item in decision.candidates if item.worker == decision.worker), None)
    if chosen is not None:
        parts += [f"{name}={_term(chosen, name):.1f}" for name in _TERMS]
    return b"%b: %b\r\n" % (NAME, "; ".join(parts).encode("ascii", "replace"))


def _term(candidate: Candidate, name: str) -> float:
    return float(getattr(candidate, name))
