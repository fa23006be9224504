"""How long an engine step takes on the modelled GPU. Seconds of the modelled machine; the driver scales them.

Modelled: a dense 32-billion-parameter model in FP8 on one H100 SXM (NVIDIA data sheet: 3.35 TB/s of HBM3, 1,979
TFLOP/s dense FP8, 80 GB), 64 layers, hidden size 5,120, 8 KV heads of 128 (the shape of Qwen2.5-32B).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

PREFILL_TOKENS_PER_S = 10_000.0
"""2 FLOP × 32e9 a token = 64 GFLOP; 1,979 TFLOP/s × about a third reached = 640 TFLOP/s; 640e12 ÷ 64e9. A 4,096-token
prompt takes 0.43 s cold, inside the 350–500 ms of S2.6."""

ATTENTION_DOUBLING_TOKENS = 49_000
"""Context at which attention costs as much as the weights: 4 × 64 layers × 5,120 = 1.3 MFLOP a context token, and
64 GFLOP ÷ 1.3 MFLOP = 49,000."""

DECODE_BASE_S = 0.0125
"""Each step reads all weights: 32 GB ÷ (3.35 TB/s × 0.76 reached)."""

DECODE_CONTEXT_TOKEN_S = 1.03e-7
"""Each step reads the KV of every running token: 64 layers × 8 heads × 128 × 2 (K, V) × 2 bytes = 262 KB;
262 KB ÷ (3.35 TB/s × 0.76)."""

DECODE_SEQUENCE_S = 5e-5
"""Sampling and scheduling for each running sequence; vLLM's CPU overhead is of the order of 1–3 ms at 32 sequences."""

KV_BLOCKS = 10_240
"""80 GB × 0.92 − 32 GB of weights = 42 GB; ÷ 262 KB = 160,000 tokens; ÷ 16 a block, rounded up."""


@dataclass(frozen=True, slots=True)
class StepCost:
    prefill_tokens_per_s: float = PREFILL_TOKENS_PER_S
    decode_base_s: float = DECODE_BASE_S
    decode_context_token_s: float = DECODE_CONTEXT_TOKEN_S
    decode_sequence_s: float = DECODE_SEQUENCE_S

    def step_s(self, *, prefills: Iterable[tuple[int, int]], decode_contexts: Iterable[int]) -> float:
        """Duration of one step: `prefills` are (context before, new tokens), `decode_contexts` tokens held."""
        total_s = self.decode_base_s
        for context_tokens, new_tokens in prefills:
            slow_down = 1 + (context_tokens + new_tokens / 2) / ATTENTION_DOUBLING_TOKENS
            total_s += new_tokens / self.prefill_tokens_per_s * slow_down
        for context_tokens in decode_contexts:
            total_s += self.decode_sequence_s + context_tokens * self.decode_context_token_s
        return total_s
