"""KV events as a vLLM 0.32 worker encodes them: maps with a `type`, in batches `[ts, events, data_parallel_rank]`."""

from __future__ import annotations

import msgspec


class BlockStored(msgspec.Struct, tag="BlockStored", tag_field="type"):
    """Consecutive blocks of one request that entered the cache. Secret: token ids and the salt are in clear."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str
    lora_name: str | None
    extra_keys: list[list[str] | None]
    """One entry a block: [salt] on block 0 of a salted request, else None."""
    group_idx: int
    kv_cache_spec_kind: str


class BlockRemoved(msgspec.Struct, tag="BlockRemoved", tag_field="type"):
    block_hashes: list[int]
    medium: str
    group_idx: int


class AllBlocksCleared(msgspec.Struct, tag="AllBlocksCleared", tag_field="type"):
    pass


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, array_like=True):
    ts: float
    """Unix time in seconds."""
    events: list[KvEvent]
    data_parallel_rank: int | None = 0


def stored(
    *, hashes: list[int], parent: int | None, token_ids: list[int], block_size_tokens: int, first_salt: str | None
) -> BlockStored:
    """A BlockStored event of a plain full-attention model on the GPU."""
    extra: list[list[str] | None] = [None] * len(hashes)
    if first_salt is not None and parent is None:
        extra[0] = [first_salt]
    return BlockStored(
        block_hashes=hashes,
        parent_block_hash=parent,
        token_ids=token_ids,
        block_size=block_size_tokens,
        lora_id=None,
        medium="GPU",
        lora_name=None,
        extra_keys=extra,
        group_idx=0,
        kv_cache_spec_kind="full_attention",
    )


def removed(block_hash: int) -> BlockRemoved:
    return BlockRemoved(block_hashes=[block_hash], medium="GPU", group_idx=0)
