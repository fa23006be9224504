"""Named bounds of the routing core: everything that grows in one router process has its limit here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CoreLimits:
    """Bounds of one `RoutingTable`. The defaults fit a fleet of about 64 workers of 500k KV tokens each."""

    block_bytes: int = 512
    """Canonical text bytes in one fingerprint block, about 128 tokens: 8 workers' blocks of 16 tokens.

    Half of it doubles index memory and hashing time for a gain of at most 64 tokens a request; the double of it
    leaves prompts below 1 KB without affinity.
    """
    blocks_max: int = 8192
    """Blocks fingerprinted of one prompt (4 MiB of text, about 1M tokens); the rest counts as never cached."""
    heads_bytes_max: int = 32 * 1024 * 1024
    """Known heads of prompts, whose blocks need not be hashed again: 16,000 stretches of 16 KiB, 256 MiB of text."""
    index_bytes_max: int = 256 * 1024 * 1024
    """64 workers × 500k tokens × 4 bytes ÷ 512 × 16 bytes are 4 MiB of distinct prefixes, 0.4 KB more a branch."""
    index_tenant_share_max: float = 0.5
    """The most of the index that one tenant may fill (S23)."""
    hints_bytes_max: int = 32 * 1024 * 1024
    """What other routers told of where prompts went: 55,000 anchors of about 600 bytes."""
    sessions_max: int = 200_000
    session_ttl_s: float = 4 * 3600.0
    """Longer than a cached conversation lives on a busy worker (C61)."""
    verified_keys_max: int = 65_536
    """Remembered (key, model) pairs; about 200 bytes each."""
    histories_max: int = 100_000
    """(namespace, generation, worker) records kept for the isolation bound; about 300 bytes each."""
    rivals_max: int = 64
    """Requests of one namespace on one worker whose overlaps are followed exactly at one time."""
    heat_prefixes_max: int = 4096
    """Distinct prefixes counted between two drains."""
    heat_top: int = 20
    hot_prefixes_max: int = 8192
    """Prefixes of one pool whose load is followed; about 200 bytes each."""
    stale_deny_after_s: float = 50.0
    """Age of the last confirmation above which `on_stale = deny` namespaces are refused: 60 s less two polls' slack."""
    template_tokens_max: int = 128
    """Chat-template tokens that no byte of canonical text accounts for: default system text and tool preambles."""
