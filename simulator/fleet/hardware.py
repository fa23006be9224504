"""Modelled GPUs as data: what a step costs and how many tokens of KV fit. Each figure has its arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass

from simulator import timing


@dataclass(frozen=True, slots=True)
class GpuProfile:
    """One worker's machine and model. Seconds and tokens."""

    name: str
    prefill_tokens_per_s: float
    attention_doubling_tokens: int
    """Context at which attention costs as much as the weights."""
    decode_base_s: float
    """Every step reads all weights once."""
    decode_context_token_s: float
    """Reading the KV of one running token."""
    decode_sequence_s: float
    """Sampling and scheduling for one running sequence."""
    kv_capacity_tokens: int
    kv_bytes_per_token: int = 131_072
    """What a load from another tier moves."""
    max_num_seqs: int = 256
    """vLLM's default for a server on large GPUs is 256 to 1,024."""
    max_num_batched_tokens: int = 8_192
    """vLLM's default for a server on an H100."""

    def prefill_s(self, new_tokens: int, *, context_tokens: int) -> float:
        """Time of `new_tokens` behind `context_tokens` cached ones, without the step's base."""
        slow_down = 1 + (context_tokens + new_tokens / 2) / self.attention_doubling_tokens
        return new_tokens / self.prefill_tokens_per_s * slow_down

    def prefill_alone_s(self, new_tokens: int, *, context_tokens: int) -> float:
        """The same on an otherwise idle worker: with the base of each chunk's step."""
        steps = math.ceil(new_tokens / self.max_num_batched_tokens)
        return self.prefill_s(new_tokens, context_tokens=context_tokens) + steps * self.decode_base_s


H100_8B = GpuProfile(
    name="h100-8b",
    # 2 FLOP × 8e9 a token = 16 GFLOP; 989 TFLOP/s dense BF16 × 0.4 reached = 400 TFLOP/s; 400e12 ÷ 16e9.
    prefill_tokens_per_s=25_000.0,
    # 4 × 32 layers × 4,096 hidden = 0.52 MFLOP a context token; 16 GFLOP ÷ 0.52 MFLOP.
    attention_doubling_tokens=30_500,
    # 16 GB of weights ÷ (3.35 TB/s of HBM3 × 0.76 reached).
    decode_base_s=0.0063,
    # 32 layers × 8 KV heads × 128 × 2 (K, V) × 2 bytes = 131 KB; ÷ (3.35 TB/s × 0.76).
    decode_context_token_s=5.15e-8,
    decode_sequence_s=timing.DECODE_SEQUENCE_S,
    # 80 GB × 0.92 − 16 GB of weights = 57.6 GB; ÷ 131 KB.
    kv_capacity_tokens=440_000,
)
"""Llama-3.1-8B's shape in BF16 on one H100 SXM (NVIDIA data sheet: 3.35 TB/s, 989 TFLOP/s dense BF16, 80 GB)."""

H200_8B = GpuProfile(
    name="h200-8b",
    # The compute of an H100.
    prefill_tokens_per_s=25_000.0,
    attention_doubling_tokens=30_500,
    # 16 GB of weights ÷ (4.8 TB/s of HBM3e × 0.76 reached).
    decode_base_s=0.0044,
    # FP8 KV: 65.5 KB; ÷ (4.8 TB/s × 0.76).
    decode_context_token_s=1.8e-8,
    decode_sequence_s=timing.DECODE_SEQUENCE_S,
    # 141 GB × 0.92 − 16 GB of weights = 113.7 GB; ÷ 65.5 KB.
    kv_capacity_tokens=1_735_000,
    kv_bytes_per_token=65_536,
)
"""The same model with an FP8 KV cache on one H200 (141 GB, 4.8 TB/s): memory for agents' 90,000-token contexts."""

H100_32B = GpuProfile(
    name="h100-32b",
    prefill_tokens_per_s=timing.PREFILL_TOKENS_PER_S,
    attention_doubling_tokens=timing.ATTENTION_DOUBLING_TOKENS,
    decode_base_s=timing.DECODE_BASE_S,
    decode_context_token_s=timing.DECODE_CONTEXT_TOKEN_S,
    decode_sequence_s=timing.DECODE_SEQUENCE_S,
    kv_capacity_tokens=timing.KV_BLOCKS * 16,
    # 64 layers × 8 KV heads × 128 × 2 (K, V) × 2 bytes.
    kv_bytes_per_token=262_144,
)
"""The simulated worker's machine; `simulator/timing.py` has the arithmetic."""

B200_8B = GpuProfile(
    name="b200-8b",
    # 2 FLOP × 8e9 a token = 16 GFLOP; 2,250 TFLOP/s dense BF16 × 0.4 reached = 900 TFLOP/s; 900e12 ÷ 16e9.
    prefill_tokens_per_s=56_000.0,
    # As for the H100: a ratio of FLOP, whatever the machine.
    attention_doubling_tokens=30_500,
    # 16 GB of weights ÷ (8 TB/s of HBM3e × 0.76 reached).
    decode_base_s=0.0026,
    # FP8 KV: 65.5 KB; ÷ (8 TB/s × 0.76).
    decode_context_token_s=1.1e-8,
    decode_sequence_s=timing.DECODE_SEQUENCE_S,
    # 180 GB × 0.92 − 16 GB of weights = 149.6 GB; ÷ 65.5 KB.
    kv_capacity_tokens=2_280_000,
    kv_bytes_per_token=65_536,
)
"""The same on one B200 of a DGX (NVIDIA's figures: 8 GPUs with 1,440 GB, 64 TB/s and 72 PFLOP/s of sparse FP8, so that
one has 180 GB, 8 TB/s and, dense in BF16, a quarter of its 9 PFLOP/s)."""

PROFILES = {profile.name: profile for profile in (H200_8B, H100_8B, H100_32B, B200_8B)}
