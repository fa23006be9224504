"""What is wrong with recorded requests of a shipment."""

from __future__ import annotations

from collections.abc import Sequence

from router.contract.recorded import ANCHOR_BYTES, ANCHORS_MAX, RECORDED_MAX, RecordedRequest

TOKENS_MAX = 2**31 - 1
AWAY_S_MAX = 86_400.0
"""A request takes less, however long its answer."""


def fault_of(requests: Sequence[RecordedRequest], *, at: float) -> str:
    """ "" where nothing is. Holds no content. `at` is the shipment's."""
    if len(requests) > RECORDED_MAX:
        return f"more than {RECORDED_MAX} recorded requests"
    return "a recorded request is out of range" if any(_is_wrong(each, at) for each in requests) else ""


def _is_wrong(request: RecordedRequest, at: float) -> bool:
    counts = (request.output_tokens, request.cached_tokens or 0, request.text_bytes, request.head_blocks)
    return not (
        1 <= request.prompt_tokens <= TOKENS_MAX
        and all(0 <= count <= TOKENS_MAX for count in counts)
        and 0 < request.share <= 1
        and abs(request.at - at) <= AWAY_S_MAX
        and len(request.anchors) <= ANCHOR_BYTES * ANCHORS_MAX
        and not len(request.anchors) % ANCHOR_BYTES
        and len(request.unit) in (0, ANCHOR_BYTES)
    )
