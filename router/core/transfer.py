"""Local hit, remote pull or recompute (S3.5): what fetching KV from elsewhere costs beside computing it again."""

from __future__ import annotations


def transfer_ms(size_bytes: float, *, bytes_per_s: float, setup_ms: float = 0.0) -> float:
    """size ÷ effective bandwidth + set-up, in milliseconds. Raises ValueError for a bandwidth that is not positive."""
    if bytes_per_s <= 0:
        raise ValueError(f"bandwidth must be positive, not {bytes_per_s} bytes/s")
    return size_bytes / bytes_per_s * 1000.0 + setup_ms


def worth_pulling(*, pull_ms: float, recompute_ms: float) -> bool:
    """Whether the pull ends sooner; a tie is recomputed, which needs no second machine."""
    return pull_ms < recompute_ms
