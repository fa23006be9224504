"""Three lives of a real worker, as recorded: stores, evictions, clears, restarts at seq 0."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from router.core.exact.block_index import BlockIndex, Tier
from router.core.exact.event_stream import EventStream
from tests.exact_index.naive import HOLDER, Content, apply, content_of

RECORDED = Path(__file__).parents[1] / "fixtures" / "vllm" / "kv_events_trimmed.jsonl.gz"
CHECK_EVERY = 25
"""Batches between two comparisons."""


def recorded() -> Iterator[tuple[int, list[Any]]]:
    with gzip.open(RECORDED, "rt") as lines:
        for line in lines:
            message = json.loads(line)
            yield message["seq"], message["batch"]


def test_the_index_follows_a_real_worker_through_all_its_lives() -> None:
    messages = list(recorded())
    universe = {block for _, batch in messages for event in batch[1] for block in event.get("block_hashes", [])}
    index = BlockIndex(bytes_max=1 << 24)
    stream = EventStream(index, HOLDER)
    stream.connect()
    stream.replay_end(stream.ask)
    content: Content = Content()
    last = -1
    for at, (seq, batch) in enumerate(messages):
        content = apply(content if seq > last else Content(), batch[1])
        last = seq
        stream.receive(seq, msgspec.msgpack.encode(batch), now=0.0)
        while stream.step():
            pass
        assert stream.exact
        assert index.resident_of(HOLDER).device == len(content)
        if at % CHECK_EVERY == 0:
            assert content_of(index, HOLDER, universe) == set(content)
    assert content_of(index, HOLDER, universe) == set(content)
    counts = stream.counts
    assert (counts.restarts, counts.cleared > 0, counts.removed > 4000) == (2, True, True)
    assert (counts.removed_unknown, counts.refused_events, counts.unknown_events, counts.gaps) == (0, 0, 0, 0)


def test_blocks_that_were_stored_again_are_counted_c13() -> None:
    """The recording has them: without reference counts, some removals would find nothing."""
    references: Content = Content()
    most = 0
    for _, batch in recorded():
        references = apply(references, batch[1])
        most = max([most, *references.values()])
    assert most > 1 and all(tier == Tier.DEVICE for tier, _ in references)
