"""Recorded traffic from a file: a router's recording, or any trace in Mooncake's format. Plain or .gz."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from router.contract.recorded import (
    ANCHOR_BYTES,
    TEXT_BLOCK_BYTES,
    RecordedRequest,
    RecordingHead,
    anchor_positions,
)
from router.core.sampling import SHARE_MIN
from simulator.replay import ConversationRequest

PREFIXES = ("recorded:", "file:")
REQUESTS_MAX = 1_000_000
"""About 2 KB of memory each."""
TOKENS_MAX = 2**31 - 1
_TRACE_BLOCK_TOKENS = 512
_TRACE_BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Recording:
    head: RecordingHead
    requests: list[RecordedRequest]
    """By time."""

    def of_pool(self, pool: str | None) -> Recording:
        return self if pool is None else replace(self, requests=[each for each in self.requests if each.pool == pool])


def load(name: str) -> Recording:
    """Raises ValueError with one sentence: no such file, no recording, nothing in it."""
    path = Path(name)
    for prefix in PREFIXES:
        if name.startswith(prefix):
            path = Path(name.removeprefix(prefix))
    try:
        recording = _read(_lines(path))
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path.name} cannot be read: {type(error).__name__}") from None
    if not recording.requests:
        raise ValueError(f"{path.name} holds no requests")
    recording.requests.sort(key=lambda request: request.at)
    return recording


def _lines(path: Path) -> Iterator[bytes]:
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
        yield from lines


def _read(lines: Iterator[bytes]) -> Recording:
    first = next(lines, b"")
    try:
        head = msgspec.json.decode(first, type=RecordingHead)
        if b'"format"' not in first:
            return _trace(first, lines)
        if head.format != RecordingHead().format:
            raise ValueError(f"the recording's format {head.format[:40]!r} is not known")
        decoder = msgspec.json.Decoder(RecordedRequest)
        requests = [_checked(decoder.decode(line)) for line in _bounded(lines)]
    except msgspec.DecodeError:
        raise ValueError("the file is neither a recording nor a trace in Mooncake's format") from None
    return Recording(head, requests)


def _bounded(lines: Iterator[bytes]) -> Iterator[bytes]:
    for number, line in enumerate(lines):
        if number >= REQUESTS_MAX:
            raise ValueError(f"the recording holds more than {REQUESTS_MAX:,} requests: choose a shorter range")
        if line.strip():
            yield line


def _checked(request: RecordedRequest) -> RecordedRequest:
    counts = (request.output_tokens, request.cached_tokens or 0, request.text_bytes, request.head_blocks)
    if not (
        1 <= request.prompt_tokens <= TOKENS_MAX
        and all(0 <= count <= TOKENS_MAX for count in counts)
        and SHARE_MIN <= request.share <= 1
        and not len(request.anchors) % ANCHOR_BYTES
        and len(request.unit) in (0, ANCHOR_BYTES)
    ):
        raise ValueError("a request of the recording has impossible figures")
    if len(request.anchors) > ANCHOR_BYTES * len(anchor_positions(request.text_bytes // TEXT_BLOCK_BYTES)):
        raise ValueError("a request of the recording has more anchors than its text is long")
    return request


def _trace(first: bytes, lines: Iterator[bytes]) -> Recording:
    """Mooncake's ids stand for blocks of 512 tokens: 4 text blocks each."""
    decoder = msgspec.json.Decoder(ConversationRequest)
    rows = [decoder.decode(first), *(decoder.decode(line) for line in _bounded(lines))]
    if any(not 0 <= each < 1 << 8 * ANCHOR_BYTES for row in rows for each in row.hash_ids):
        raise ValueError("a request of the trace has an impossible block id: they are 64 bits wide")
    return Recording(RecordingHead(), [_checked(_of_trace(row)) for row in rows])


def _of_trace(row: ConversationRequest) -> RecordedRequest:
    """Of positions inside a block the id of the block counts, as they agree when it does."""
    text_bytes = row.input_length * _TRACE_BYTES_PER_TOKEN
    a_block = _TRACE_BLOCK_TOKENS * _TRACE_BYTES_PER_TOKEN // TEXT_BLOCK_BYTES
    ids = row.hash_ids
    positions = anchor_positions(min(text_bytes // TEXT_BLOCK_BYTES, len(ids) * a_block))
    anchors = b"".join(ids[(at - 1) // a_block].to_bytes(ANCHOR_BYTES) for at in positions)
    unit = ids[min(1, len(ids) - 1)].to_bytes(ANCHOR_BYTES) if ids else b""
    return RecordedRequest(
        at=row.timestamp / 1_000, tenant="", namespace="trace", pool="", model="", worker="",
        prompt_tokens=max(1, row.input_length), output_tokens=max(0, row.output_length),
        text_bytes=text_bytes, anchors=anchors, unit=unit, head_blocks=min(a_block, text_bytes // TEXT_BLOCK_BYTES),
    )  # fmt: skip
