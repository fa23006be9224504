"""Whether a worker computes prompts without saying so: events are configured, but none arrive (C15)."""

from __future__ import annotations

SILENT_S = 5.0
"""Events come before the answer's first token (p99 0.2 s behind the batch); this long after the answer, none comes."""
SILENT_TOKENS_MIN = 1024
"""Computed prompt tokens without an event: above every usual block size, so a block must have been stored (C15)."""


class Silence:
    """All times are on one clock of the caller, in seconds."""

    def __init__(self) -> None:
        self._heard_at = float("-inf")
        self._tokens = 0
        self._answered_at = 0.0

    def heard(self, *, now: float) -> None:
        """A batch arrived."""
        self._heard_at = now
        self._tokens = 0

    def note_answer(self, *, computed_tokens: int, sent_at: float, now: float) -> None:
        """A request sent at `sent_at` was answered; earlier ones may have had their event already."""
        if sent_at > self._heard_at:
            self._tokens += computed_tokens
            self._answered_at = now

    def lasts(self, *, now: float) -> bool:
        return self._tokens >= SILENT_TOKENS_MIN and now - self._answered_at >= SILENT_S
