"""Local hit, remote pull or recompute (S1.5, S3.5): what fetching KV from elsewhere costs beside computing it again.

    transfer_ms ≈ bytes ÷ effective bandwidth + set-up
    a tier's tokens are loaded when that ends sooner than computing them

Worked example (S3.5): 2 GiB over 20 GiB/s are 100 ms, a recompute is 60 ms: recompute.
"""

from __future__ import annotations

from dataclasses import dataclass

from router.core.model import ExactMatch

GIB = 1024.0**3

HOST_GIB_PER_S = 20.0
"""Effective bandwidth from a worker's own host memory to its device: PCIe 4 ×16 gives 32 GB/s at best, small blocks
two thirds of it. No set-up to speak of: no second machine takes part."""


@dataclass(frozen=True, slots=True)
class Link:
    """What a pool's connector can do. `remote_gib_per_s` None = it pulls nothing from the shared tier."""

    kv_bytes_per_token: int
    remote_gib_per_s: float | None
    remote_setup_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Hit:
    """What of a prompt a worker need not compute."""

    blocks: int
    """Whole blocks on the device, as the index counts them."""
    tokens: int
    """Tokens not computed, those loaded from other tiers included."""
    loaded_tokens: int = 0
    """Of these, loaded from a host or shared tier."""
    transfer_ms: float = 0.0


def transfer_ms(size_bytes: float, *, bytes_per_s: float, setup_ms: float = 0.0) -> float:
    """size ÷ effective bandwidth + set-up, in milliseconds. Raises ValueError for a bandwidth that is not positive."""
    if bytes_per_s <= 0:
        raise ValueError(f"bandwidth must be positive, not {bytes_per_s} bytes/s")
    return size_bytes / bytes_per_s * 1000.0 + setup_ms


def worth_pulling(*, pull_ms: float, recompute_ms: float) -> bool:
    """Whether the pull ends sooner; a tie is recomputed, which needs no second machine."""
    return pull_ms < recompute_ms


def exact_hit(
    held: ExactMatch, *, prompt_tokens: int, block_tokens: int, tokens_per_s: float, link: Link | None
) -> Hit:
    """vLLM's rule: whole blocks only, and never the whole prompt, since the last token is always computed.

    `prompt_tokens` a multiple of the block size therefore loses its last block. Tiers follow each other: what the
    host holds counts from where the device's prefix ends, the shared tier's from where the host's ends.
    """
    usable = max(prompt_tokens - 1, 0) // block_tokens * block_tokens
    local = min(held.device_tokens // block_tokens * block_tokens, usable)
    tokens, cost_ms = local, 0.0
    if link is not None:
        for more, gib_per_s, setup_ms in (
            (held.host_tokens, HOST_GIB_PER_S, 0.0),
            (held.remote_tokens, link.remote_gib_per_s, link.remote_setup_ms),
        ):
            reach = min((tokens + more) // block_tokens * block_tokens, usable)
            if reach <= tokens:
                continue
            if gib_per_s is None:
                break
            size_bytes = (reach - tokens) * link.kv_bytes_per_token
            pull_ms = transfer_ms(size_bytes, bytes_per_s=gib_per_s * GIB, setup_ms=setup_ms)
            if not worth_pulling(pull_ms=pull_ms, recompute_ms=(reach - tokens) / tokens_per_s * 1000.0):
                break
            tokens, cost_ms = reach, cost_ms + pull_ms
    return Hit(local // block_tokens, tokens, tokens - local, cost_ms)
