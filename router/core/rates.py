"""Figures learnt online: a worker's prefill rate, a pool's bytes per token, and how far predicted hits come true.

All are exponential means with bounded steps, so that one odd answer moves little. O(1) each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

PREFILL_TOKENS_PER_S_DEFAULT: Final = 10_000.0
"""Where neither the pool nor the worker says: 4,096 tokens in about 410 ms (S2.6 names 350–500 ms)."""
PREFILL_TOKENS_PER_S_MIN: Final = 10.0
PREFILL_TOKENS_PER_S_MAX: Final = 5e6

RATE_SAMPLE_TOKENS_MIN: Final = 128
"""Below it the first token's fixed costs, not prefill, make the time."""
_RATE_WEIGHT_MAX: Final = 0.15
_RATE_HALF_S: Final = 0.5
"""A prefill of this length weighs half of the most: short ones are mostly step ends and decoding beside them."""
_RATE_PRIOR_S: Final = 0.5
"""Prefill that the first estimate stands for: a few short prompts do not make a worker slow."""
RATE_FADE_S: Final = 120.0
"""Half-life of what tells a worker's rate from its pool's: one that is thought slow gets no prompts that could show
otherwise."""
_RATE_SLOWER_MAX: Final = 4.0
"""A single sample counts as at most four times slower than the present estimate."""

ATTENTION_DOUBLING_TOKENS_DEFAULT: Final = 40_000.0
"""Context at which attention costs a token as much as the weights do, where nothing was learnt: parameters ÷
(2 × layers × hidden size), which is 30,500 for Llama-3.1-8B, 49,000 for Qwen2.5-32B and 53,000 for Llama-3.1-70B."""
ATTENTION_DOUBLING_TOKENS_MIN: Final = 5_000.0
ATTENTION_DOUBLING_TOKENS_MAX: Final = 1e6
"""Beyond any context: a model whose attention does not grow with it."""
_ATTENTION_SAMPLE_TOKENS_MIN: Final = 2_048
_ATTENTION_PRIOR_TOKENS: Final = 100_000.0
"""Weight of each of the default's points: ten long prompts."""
_ATTENTION_SAMPLE_TOKENS_MAX: Final = 10_000
"""The most that one prompt weighs."""
_ATTENTION_ODD: Final = 2.0
"""A sample counts as at most this much faster or slower than expected."""
_ATTENTION_MEMORY_TOKENS: Final = 3e6
"""Weight of later samples after which one has lost most of its own: 300 long prompts."""

BYTES_PER_TOKEN_DEFAULT: Final = 4.0
_BYTES_PER_TOKEN_MIN, _BYTES_PER_TOKEN_MAX = 1.0, 16.0
_BYTES_WEIGHT: Final = 0.1
_TEXT_BYTES_MIN: Final = 256
"""Shorter prompts are mostly chat template, which the canonical text does not hold."""

_CREDIT_WEIGHT: Final = 0.1
_CREDIT_MIN: Final = 0.05
"""A worker that never delivers keeps a trace of credit, so that it can earn it back."""


@dataclass(slots=True)
class PrefillRate:
    """Prefill speed of one worker, or of a pool's typical worker. A worker without samples shares its pool's object."""

    tokens_per_s: float = PREFILL_TOKENS_PER_S_DEFAULT
    samples: int = 0
    seen_s: float = 0.0
    """Prefill that taught it so far."""

    def observe(self, *, work_tokens: float, seconds: float) -> bool:
        """Prefill of this work (see `Attention`) took `seconds` from when the worker was free for it; whether that
        tells anything.

        The mean is one of seconds, not of rates: of two prompts that end in one step the second takes none.
        """
        if work_tokens < RATE_SAMPLE_TOKENS_MIN or not 0 <= seconds < math.inf:
            return False
        self.samples += 1
        expected_s = work_tokens / self.tokens_per_s
        weight = expected_s / (expected_s + _RATE_HALF_S) * _RATE_WEIGHT_MAX
        weight = max(weight, expected_s / (expected_s + _RATE_PRIOR_S + self.seen_s))
        self.seen_s += expected_s
        slower = min(seconds / expected_s, _RATE_SLOWER_MAX)
        rate = self.tokens_per_s / (1.0 + weight * (slower - 1.0))
        self.tokens_per_s = min(max(rate, PREFILL_TOKENS_PER_S_MIN), PREFILL_TOKENS_PER_S_MAX)
        return True

    def fade(self, towards: PrefillRate, *, seconds: float) -> None:
        """So long went by since the last call."""
        self.tokens_per_s += (1.0 - 2.0 ** (-seconds / RATE_FADE_S)) * (towards.tokens_per_s - self.tokens_per_s)


@dataclass(slots=True)
class Attention:
    """What a token's prefill costs behind others, for the model of one pool: 1 + tokens before it ÷ doubling_tokens.

    Learnt as the line of slowness over mean context through the prefills that had a worker to themselves, each weighing
    its tokens up to a bound, with the default as two more points.
    """

    doubling_tokens: float = ATTENTION_DOUBLING_TOKENS_DEFAULT
    _weight: float = 0.0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0

    def work(self, tokens: float) -> float:
        """Prefill of a prompt's first `tokens` tokens, in tokens that have nothing before them. What follows a cached
        prefix is work(prompt) − work(prefix)."""
        return tokens * (1.0 + 0.5 * tokens / self.doubling_tokens)

    def observe(self, *, prompt_tokens: int, cached_tokens: int, seconds: float, tokens_per_s: float) -> None:
        """A prompt's prefill took `seconds` on a worker of this rate that had nothing else to prefill."""
        tokens = prompt_tokens - cached_tokens
        if tokens < _ATTENTION_SAMPLE_TOKENS_MIN or not 0 < seconds < math.inf:
            return
        context = cached_tokens + tokens / 2
        expected = 1.0 + context / self.doubling_tokens
        slowness = min(max(seconds * tokens_per_s / tokens, expected / _ATTENTION_ODD), expected * _ATTENTION_ODD)
        weight = float(min(tokens, _ATTENTION_SAMPLE_TOKENS_MAX))
        kept = math.exp(-weight / _ATTENTION_MEMORY_TOKENS)
        self._weight = self._weight * kept + weight
        self._x = self._x * kept + weight * context
        self._y = self._y * kept + weight * slowness
        self._xx = self._xx * kept + weight * context * context
        self._xy = self._xy * kept + weight * context * slowness
        self.doubling_tokens = self._fitted()

    def _fitted(self) -> float:
        """Intercept ÷ slope of the weighted least squares, the default's points (0, 1) and (default, 2) among them."""
        prior, default = _ATTENTION_PRIOR_TOKENS, ATTENTION_DOUBLING_TOKENS_DEFAULT
        weight = self._weight + 2.0 * prior
        x, y = self._x + prior * default, self._y + 3.0 * prior
        xx, xy = self._xx + prior * default * default, self._xy + 2.0 * prior * default
        slope = weight * xy - x * y
        intercept = xx * y - x * xy
        if intercept <= 0.0:
            return ATTENTION_DOUBLING_TOKENS_MIN
        if intercept >= slope * ATTENTION_DOUBLING_TOKENS_MAX:
            return ATTENTION_DOUBLING_TOKENS_MAX
        return max(intercept / slope, ATTENTION_DOUBLING_TOKENS_MIN)


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
