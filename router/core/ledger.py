"""What one worker has been given and has not finished: the router's own, immediate view of load.

A reservation counts from the decision on (C31) and on every path (C33): `reserve`, then `first_byte` at most once,
then `release` exactly once, in any interleaving with others. All methods are O(1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PROGRESS_SHARE_MAX: Final = 0.75
"""The most of the pending tokens that prediction alone may call done: a stuck worker keeps looking busy."""


@dataclass(slots=True)
class Load:
    """Load of one worker. Tokens are predicted uncached prompt tokens, weighed by what is before them
    (`rates.Attention`)."""

    outstanding: int = 0
    """Requests reserved and not released."""
    decoding: int = 0
    """Of these, requests whose first byte was seen."""
    pending_tokens: int = 0
    """Tokens of the requests that wait for their first byte."""
    progress_tokens: float = 0.0
    """Of these, tokens predicted to be prefilled by `progress_at`."""
    progress_at: float = 0.0
    first_byte_at: float = 0.0
    """When a request last had its first byte: the next one's prefill begins there, in order of arrival."""

    def reserve(self, tokens: int, *, tokens_per_s: float, now: float) -> None:
        self._advance(tokens_per_s, now)
        self.outstanding += 1
        self.pending_tokens += tokens

    def first_byte(self, tokens: int, *, tokens_per_s: float, now: float) -> None:
        """The request's prefill is done: it decodes from here on."""
        self._finish_prefill(tokens, tokens_per_s, now)
        self.decoding += 1
        self.first_byte_at = now

    def release(self, tokens: int, *, tokens_per_s: float, now: float, decoding: bool) -> None:
        """`decoding`: whether `first_byte` was called for this request."""
        self.outstanding -= 1
        if decoding:
            self.decoding -= 1
        else:
            self._finish_prefill(tokens, tokens_per_s, now)

    def remaining_tokens(self, *, tokens_per_s: float, now: float) -> float:
        """Pending tokens less the progress predicted since, never below a quarter of the pending ones."""
        pending = self.pending_tokens
        if not pending:
            return 0.0
        progress = self.progress_tokens + tokens_per_s * (now - self.progress_at)
        return pending - min(max(progress, 0.0), PROGRESS_SHARE_MAX * pending)

    def _advance(self, tokens_per_s: float, now: float) -> None:
        if now > self.progress_at:
            done = self.progress_tokens + tokens_per_s * (now - self.progress_at)
            self.progress_tokens = done if done < self.pending_tokens else float(self.pending_tokens)
        self.progress_at = now

    def _finish_prefill(self, tokens: int, tokens_per_s: float, now: float) -> None:
        self._advance(tokens_per_s, now)
        self.pending_tokens -= tokens
        left = self.progress_tokens - tokens
        self.progress_tokens = left if left > 0 else 0.0
