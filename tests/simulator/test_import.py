"""Logs of requests become traces without text: equal prefixes stay equal, what cannot be read is counted."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.__main__ import main
from simulator.imports.openai_logs import BLOCK_BYTES, OUTPUT_TOKENS_UNKNOWN, Counts, read_logs
from simulator.replay import load_conversation

SECRET = "the plan of the merger "


def line(text: str, *, at: object = 1_735_689_600.0, used: object = 80, system: str = "rules " * 800) -> bytes:
    record = {
        "timestamp": at,
        "request": {
            "model": "m",
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": text}],
        },
        "response": {"usage": {"prompt_tokens": 900, "completion_tokens": used}},
    }
    return json.dumps(record).encode()


def read(*lines: bytes, key: bytes = b"k" * 32) -> tuple[list, Counts]:
    counts = Counts()
    return list(read_logs(lines, counts, key=key)), counts


def test_equal_prefixes_have_equal_ids_and_nothing_else_has() -> None:
    (one, other, third), _ = read(line("a" * 3_000), line("b" * 3_000), line("a" * 9_000))
    whole = len("rules " * 800) // BLOCK_BYTES
    assert one.hash_ids[:whole] == other.hash_ids[:whole]
    assert not set(one.hash_ids[whole:]) & set(other.hash_ids[whole:])
    known = (len("rules " * 800) + 3_000) // BLOCK_BYTES
    assert one.hash_ids[:known] == third.hash_ids[:known]
    assert len(one.hash_ids) == -(-one.input_length * 4 // BLOCK_BYTES)


@pytest.mark.parametrize(
    ("at", "other", "apart_ms"),
    [
        (1_735_689_600.0, 1_735_689_601.5, 1_500),
        (1_735_689_600_000, 1_735_689_601_500, 1_500),
        ("2025-01-01T00:00:00Z", "2025-01-01T00:00:01.500", 1_500),
        ("2025-01-01T00:00:00Z", "2025-01-01T01:00:02+01:00", 2_000),
        (5.0, None, 0),
        (5.0, "noon", 0),
        (5.0, 4.0, 0),
    ],
)
def test_times_are_understood_in_the_spellings_of_logs(at: object, other: object, apart_ms: int) -> None:
    found, _ = read(line("a", at=at), line("b", at=other))
    assert [each.timestamp for each in found] == [0, apart_ms]


def test_what_is_unknown_is_counted_and_not_made_up() -> None:
    found, counts = read(line("a", used=None), line("b", at=None), b"", b"{}", b"[1]", b"nonsense", line("c"))
    assert (counts.taken, counts.without_usage, counts.without_time) == (3, 1, 1)
    assert found[0].output_length == OUTPUT_TOKENS_UNKNOWN
    assert dict(counts.refused) == {"without request": 1, "not a JSON object": 1, "not a line of JSON": 1}


def test_another_import_has_other_ids() -> None:
    (one,), _ = read(line("a"), key=b"1" * 32)
    (other,), _ = read(line("a"), key=b"2" * 32)
    assert not set(one.hash_ids) & set(other.hash_ids)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["request", "messages", "role", "content", "tools", "usage", "text", "timestamp"]), inner), max_leaves=12))  # fmt: skip  # noqa: E501  one strategy
def test_any_json_is_taken_or_counted(value: object) -> None:
    counts = Counts()
    taken = list(read_logs([json.dumps({"request": value}).encode()], counts, key=b"k" * 32))
    assert len(taken) + sum(counts.refused.values()) == 1


def test_an_imported_log_runs_and_keeps_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, out = tmp_path / "log.jsonl.gz", tmp_path / "trace.jsonl.gz"
    with gzip.open(log, "wb") as lines:
        for number in range(80):
            lines.write(line(SECRET * 60 + f"{number % 7}" * 4_000, at=1_735_689_600 + number * 2) + b"\n")
        lines.write(b"cut off\n")
    assert main(["import", "openai", str(log), "--out", str(out)]) == 0
    assert "80 requests taken, 1 lines passed over" in capsys.readouterr().out
    assert SECRET.encode() not in gzip.decompress(out.read_bytes()) and len(load_conversation(out)) == 80
    flags = ["--workers", "2", "--load", "0.3", "--seeds", "1", "--policies", "tidemark,oracle"]
    assert main(["fleet", "--trace", f"file:{out}", *flags]) == 0
    assert "tidemark" in capsys.readouterr().out


def test_a_log_without_a_request_makes_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, out = tmp_path / "log", tmp_path / "trace.jsonl.gz"
    log.write_text("nothing\n")
    assert main(["import", "openai", str(log), "--out", str(out)]) == 1
    assert not out.exists() and not list(tmp_path.glob("*.part"))
    assert main(["import", "openai", str(tmp_path / "absent"), "--out", str(out)]) == 2
    assert "no such file" in capsys.readouterr().err
