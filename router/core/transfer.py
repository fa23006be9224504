"""Local hit, remote pull or recompute (S1.5, S3.5): what fetching KV from elsewhere costs beside computing it again.

    transfer_ms ≈ bytes ÷ effective bandwidth + set-up                    from a host or shared tier
    transfer_ms ≈ bytes ÷ effective bandwidth + set-up + holder's queue   from another worker
    tokens are fetched when that ends sooner than computing them

Worked example (S3.5): 2 GiB over 20 GiB/s are 100 ms, a recompute is 60 ms: recompute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from router.contract.ids import WorkerId
from router.core.model import ExactMatch
from router.core.rates import Attention

GIB: Final = 1024.0**3

HOST_GIB_PER_S: Final = 20.0
"""Effective bandwidth from a worker's own host memory to its device: PCIe 4 ×16 gives 32 GB/s at best, small blocks
two thirds of it. No set-up to speak of: no second machine takes part."""

PULL_TOKENS_MIN: Final = 512
"""Fewer tokens are computed within some ten milliseconds, which the two requests of a pull take as well."""


@dataclass(frozen=True, slots=True)
class Link:
    """What a pool's connector can do. `remote_gib_per_s` None = it pulls nothing from the shared tier or a peer."""

    kv_bytes_per_token: int
    remote_gib_per_s: float | None
    remote_setup_ms: float = 0.0


class Hit:
    """What of a prompt a worker need not compute."""

    __slots__ = ("blocks", "expected_tokens", "loaded_tokens", "pulled", "tokens", "transfer_ms")

    def __init__(
        self,
        blocks: int,
        tokens: int,
        loaded_tokens: int = 0,
        transfer_ms: float = 0.0,
        pulled: bool = False,
        expected_tokens: int = 0,
    ) -> None:
        self.blocks: Final = blocks
        """Whole blocks on the device, or on their way there, as the index counts them."""
        self.tokens: Final = tokens
        """Tokens not computed, those loaded from other tiers included."""
        self.loaded_tokens: Final = loaded_tokens
        """Of these, loaded from a host or shared tier, or pulled."""
        self.transfer_ms: Final = transfer_ms
        self.pulled: Final = pulled
        """Whether they come from another worker, which is asked first."""
        self.expected_tokens: Final = expected_tokens
        """Of `tokens`, those on their way to the device in another request."""


class Source:
    """The worker from which the others may pull a prompt's KV: what it holds, and what asking it costs."""

    __slots__ = ("answer_ms", "credit", "tokens", "url", "wait_ms", "worker")

    def __init__(
        self, worker: WorkerId, url: str, tokens: int, credit: float, wait_ms: float, answer_ms: float
    ) -> None:
        self.worker: Final = worker
        self.url: Final = url
        self.tokens: Final = tokens
        """Of the prompt that it need not compute; it computes the others before its KV is pulled."""
        self.credit: Final = credit
        """Share of such predictions that it delivers."""
        self.wait_ms: Final = wait_ms
        """Its predicted queue, through which the pull goes."""
        self.answer_ms: Final = answer_ms
        """Until it should have answered: its queue and the tokens that it computes."""


def transfer_ms(size_bytes: float, *, bytes_per_s: float, setup_ms: float = 0.0) -> float:
    """size ÷ effective bandwidth + set-up, in milliseconds. Raises ValueError for a bandwidth that is not positive."""
    if bytes_per_s <= 0:
        raise ValueError(f"bandwidth must be positive, not {bytes_per_s} bytes/s")
    return size_bytes / bytes_per_s * 1000.0 + setup_ms


def worth_pulling(*, pull_ms: float, recompute_ms: float) -> bool:
    """Whether the pull ends sooner; a tie is recomputed, which needs no second machine."""
    return pull_ms < recompute_ms


def exact_hit(
    held: ExactMatch,
    *,
    prompt_tokens: int,
    block_tokens: int,
    tokens_per_s: float,
    link: Link | None,
    attention: Attention,
) -> Hit:
    """vLLM's rule: whole blocks only, and never the whole prompt, since the last token is always computed.

    `prompt_tokens` a multiple of the block size therefore loses its last block. Tiers follow each other: what the
    host holds counts from where the device's prefix ends, the shared tier's from where the host's ends.
    """
    usable = max(prompt_tokens - 1, 0) // block_tokens * block_tokens
    local = min(held.device_tokens // block_tokens * block_tokens, usable)
    told = held.device_tokens - held.expected_tokens
    expected = max(0, local - told // block_tokens * block_tokens)
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
            recompute_ms = (attention.work(reach) - attention.work(tokens)) / tokens_per_s * 1000.0
            if not worth_pulling(pull_ms=pull_ms, recompute_ms=recompute_ms):
                break
            tokens, cost_ms = reach, cost_ms + pull_ms
    return Hit(local // block_tokens, tokens, tokens - local, cost_ms, expected_tokens=expected)


def pulled_hit(
    local: Hit,
    source: Source,
    *,
    prompt_tokens: int,
    block_tokens: int,
    tokens_per_s: float,
    link: Link,
    attention: Attention,
) -> Hit:
    """What a worker need not compute when it may pull from `source`; `local` where that is no gain.

    The source computes what it lacks of the prompt first, so everything that this worker's device lacks is pulled,
    through the source's queue.
    """
    if link.remote_gib_per_s is None or source.tokens - local.tokens < PULL_TOKENS_MIN:
        return local
    size_bytes = (prompt_tokens - local.blocks * block_tokens) * link.kv_bytes_per_token
    moved_ms = transfer_ms(size_bytes, bytes_per_s=link.remote_gib_per_s * GIB, setup_ms=link.remote_setup_ms)
    pull_ms = moved_ms + source.wait_ms
    recompute_ms = (attention.work(source.tokens) - attention.work(local.tokens)) / tokens_per_s * 1000.0
    if not worth_pulling(pull_ms=pull_ms, recompute_ms=recompute_ms + local.transfer_ms):
        return local
    loaded_tokens = source.tokens - local.blocks * block_tokens
    return Hit(local.blocks, source.tokens, loaded_tokens, pull_ms, pulled=True)
