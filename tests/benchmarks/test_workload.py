"""The quality workload is the one that peers were measured with, and its bounds are what a cache can give."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import pytest

from benchmarks.workload import Request, distinct_blocks, hit_bound, make_workload, write_workload


@pytest.fixture(scope="module")
def workload() -> list[Request]:
    return make_workload()


def test_it_is_the_same_on_every_machine(workload: list[Request]) -> None:
    bodies = hashlib.sha256(b"".join(request.body for request in workload)).hexdigest()
    assert (len(workload), distinct_blocks(workload)) == (2232, 63_735)
    assert bodies == "951fb75bde7611fd87e597f8fdccb44df9bc616deee31e375a3d24da49a56365"


def test_the_generator_reads_each_conversations_turns_in_a_row(workload: list[Request], tmp_path: Path) -> None:
    file = tmp_path / "w.bin"
    write_workload(workload, file)
    data, at, sessions = file.read_bytes(), 0, []
    while at < len(data):
        session, length = struct.unpack_from("<II", data, at)
        sessions.append(session)
        at += 8 + length
    assert at == len(data) and len(sessions) == len(workload)
    turns = [session for before, session in zip([None, *sessions], sessions, strict=False) if session != before]
    assert len(turns) == len(set(turns)) == 800


def test_the_bound_falls_with_the_cache_and_hardly_with_the_order(workload: list[Request]) -> None:
    everything = distinct_blocks(workload)
    whole = [100 * hit_bound(workload, cache_blocks=everything, connections=n) for n in (1, 32, 128)]
    assert whole == pytest.approx([89.55] * 3, abs=0.005)
    part = 100 * hit_bound(workload, cache_blocks=int(0.38 * everything), connections=32)
    assert 85.5 < part < 87.0
    assert hit_bound(workload, cache_blocks=0, connections=32) == 0


def test_each_request_is_served_once_in_the_order_of_its_conversation() -> None:
    requests = [Request(talk, 0, b"", (talk * 10 + turn,), 64) for talk in range(7) for turn in range(talk % 3 + 1)]
    alike = [Request(talk, 0, b"", (1,), 64) for talk in range(7)]
    assert hit_bound(requests, cache_blocks=100, connections=3) == 0
    assert hit_bound(alike, cache_blocks=1, connections=3) == pytest.approx(6 / 7)
