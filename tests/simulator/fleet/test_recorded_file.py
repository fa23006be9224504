"""Files that are no recording are refused in one sentence, whatever is wrong with them."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from router.contract.recorded import ANCHOR_BYTES
from simulator.fleet.recorded_file import load

HEAD = {"format": "tidemark-recording/1"}
REQUEST = {
    "at": 1.0, "tenant": "t", "namespace": "t/n", "pool": "p", "model": "m", "worker": "p/w", "prompt_tokens": 10,
}  # fmt: skip
TRACE = {"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}


def _written(path: Path, *lines: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def _anchors(size: int) -> str:
    return base64.b64encode(bytes(size)).decode()


@pytest.mark.parametrize("ids", [[-1, 2], [2**64, 2]])
def test_it_refuses_a_trace_with_an_id_that_is_no_64_bits(tmp_path: Path, ids: list[int]) -> None:
    with pytest.raises(ValueError, match="impossible"):
        load(_written(tmp_path / "trace.jsonl", TRACE | {"hash_ids": ids}))


def test_it_takes_a_trace_with_the_largest_id(tmp_path: Path) -> None:
    found = load(_written(tmp_path / "trace.jsonl", TRACE | {"hash_ids": [2**64 - 1]}))
    assert found.requests[0].unit == b"\xff" * ANCHOR_BYTES


@pytest.mark.parametrize(
    "wrong",
    [
        {"share": 1e-300},
        {"text_bytes": 4096, "anchors": _anchors(ANCHOR_BYTES + 1)},
        {"unit": _anchors(ANCHOR_BYTES - 1)},
        {"text_bytes": -1},
        {"head_blocks": -1},
        {"cached_tokens": -1},
        {"prompt_tokens": 10**12},
    ],
)
def test_it_refuses_a_request_with_impossible_figures(tmp_path: Path, wrong: dict[str, Any]) -> None:
    load(_written(tmp_path / "good.jsonl", HEAD, REQUEST))
    with pytest.raises(ValueError, match=r"impossible|anchors"):
        load(_written(tmp_path / "bad.jsonl", HEAD, REQUEST | wrong))


def test_it_refuses_a_packed_file_with_flipped_bits(tmp_path: Path) -> None:
    lines = "".join(json.dumps(line) + "\n" for line in (HEAD, *[REQUEST | {"at": float(at)} for at in range(200)]))
    whole = gzip.compress(lines.encode())
    for at in range(10, len(whole)):
        path = tmp_path / "bad.jsonl.gz"
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        with pytest.raises(ValueError):
            load(str(path))
