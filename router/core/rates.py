"""Figures learnt online: a worker's prefill rate, a pool's bytes per token, and how far predicted hits come true.

All are exponential means with bounded steps, so that one odd answer moves little. O(1) each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

PREFILL_TOKENS_PER_S_DEFAULT = 10_000.0
"""Where neither the pool nor the worker says: 4,096 tokens in about 410 ms (S2.6 names 350–500 ms)."""
PREFILL_TOKENS_PER_S_MIN = 10.0
PREFILL_TOKENS_PER_S_MAX = 5e6

RATE_SAMPLE_TOKENS_MIN = 128
"""Below it the first token's fixed costs, not prefill, make the time."""
_RATE_WEIGHT_MIN = 0.15
_RATE_STEP_MAX = math.log(4.0)
"""A single sample counts as at most four times faster or slower than the present estimate."""

BYTES_PER_TOKEN_DEFAULT = 4.0
_BYTES_PER_TOKEN_MIN, _BYTES_PER_TOKEN_MAX = 1.0, 16.0
_BYTES_WEIGHT = 0.1
_TEXT_BYTES_MIN = 256
"""Shorter prompts are mostly chat template, which the canonical text does not hold."""

_CREDIT_WEIGHT = 0.1
_CREDIT_MIN = 0.05
"""A worker that never delivers keeps a trace of credit, so that it can earn it back."""


@dataclass(slots=True)
class PrefillRate:
    """Prefill speed of one worker, or of a pool's typical worker. A worker without samples shares its pool's object."""

    tokens_per_s: float = PREFILL_TOKENS_PER_S_DEFAULT
    samples: int = 0

    def observe(self, *, tokens: int, seconds: float) -> None:
        """`tokens` uncached prompt tokens (those pending before included) took `seconds` to the first byte."""
        if tokens < RATE_SAMPLE_TOKENS_MIN or not 0 < seconds < math.inf:
            return
        self.samples += 1
        weight = max(_RATE_WEIGHT_MIN, 1 / (self.samples + 1))
        step = math.log(tokens / seconds / self.tokens_per_s)
        step = min(max(step, -_RATE_STEP_MAX), _RATE_STEP_MAX)
        rate = self.tokens_per_s * math.exp(weight * step)
        self.tokens_per_s = min(max(rate, PREFILL_TOKENS_PER_S_MIN), PREFILL_TOKENS_PER_S_MAX)


@dataclass(slots=True)
class TextRatio:
    """Canonical text bytes per prompt token of one pool's models."""

    bytes_per_token: float = BYTES_PER_TOKEN_DEFAULT

    def observe(self, *, text_bytes: int, prompt_tokens: int) -> None:
        if text_bytes < _TEXT_BYTES_MIN or prompt_tokens <= 0:
            return
        seen = min(max(text_bytes / prompt_tokens, _BYTES_PER_TOKEN_MIN), _BYTES_PER_TOKEN_MAX)
        self.bytes_per_token += _BYTES_WEIGHT * (seen - self.bytes_per_token)

    def tokens(self, text_bytes: int) -> int:
        return int(text_bytes / self.bytes_per_token)


@dataclass(slots=True)
class Credit:
    """Share of the hit tokens predicted for a worker that it delivers: a stale index or a liar loses weight."""

    share: float = 1.0

    def observe(self, *, predicted_tokens: int, delivered_tokens: int) -> None:
        if predicted_tokens <= 0:
            return
        delivered = min(max(delivered_tokens / predicted_tokens, 0.0), 1.0)
        self.share = max(_CREDIT_MIN, self.share + _CREDIT_WEIGHT * (delivered - self.share))
