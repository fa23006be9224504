"""`python -m simulator what-if`: its answer, its progress and its errors."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from router.contract.recorded import Broken, RecordedRequest, RecordingHead, anchor_positions
from simulator.__main__ import main
from simulator.fleet.hardware import H200_8B
from simulator.fleet.question import Asked, Question, read_question
from simulator.fleet.recorded import RecordedWorkload, copies
from simulator.fleet.recorded_file import Recording, load
from simulator.fleet.recorded_names import bytes_per_token, prompts_of
from simulator.fleet.what_if_recorded import WhatIf

HEAD_BLOCKS, BLOCKS = 16, 24
"""Of text, 128 tokens each."""


def _request(number: int, *, at: float | None = None, share: float = 1.0, changed: bool = False) -> RecordedRequest:
    """A head that all share, then 8 blocks of its own; `changed`: its first block is its own too."""
    anchors = b"".join(
        (0 if place <= HEAD_BLOCKS and not changed else number + 1).to_bytes(4) + place.to_bytes(4)
        for place in anchor_positions(BLOCKS)
    )
    return RecordedRequest(
        at=float(number) if at is None else at, tenant="acme", namespace="acme/chat", pool="p", model="m",
        worker="p/w1",
        prompt_tokens=BLOCKS * 128, output_tokens=20, cached_tokens=HEAD_BLOCKS * 128, ttft_ms=120.0, duration_ms=400.0,
        text_bytes=BLOCKS * 512, anchors=anchors, unit=(number + 1).to_bytes(8), head_blocks=HEAD_BLOCKS, share=share,
    )  # fmt: skip


def _write(path: Path, requests: list[RecordedRequest]) -> Path:
    lines = [msgspec.json.encode(RecordingHead(pool="p")), *(msgspec.json.encode(each) for each in requests)]
    path.write_bytes(gzip.compress(b"\n".join(lines)) if path.suffix == ".gz" else b"\n".join(lines))
    return path


def _run(capsys: Any, tmp_path: Path, trace: Path, question: object) -> tuple[int, list[Any], str]:
    asked = tmp_path / "question.json"
    asked.write_bytes(question if isinstance(question, bytes) else json.dumps(question).encode())
    capsys.readouterr()
    status = main(["what-if", "--trace", str(trace), "--question", str(asked)])
    out, err = capsys.readouterr()
    return status, [json.loads(line) for line in out.splitlines()], err


def test_it_tells_progress_and_then_answers(capsysbinary: Any, tmp_path: Path) -> None:
    trace = _write(tmp_path / "t.jsonl.gz", [_request(number) for number in range(120)])
    question = {
        "workers": 2, "seeds": [1, 2], "gpu_price_per_h": 2.5, "gpus_per_worker": 2,
        "scenarios": [{"name": "as it is"}, {"name": "more", "workers": 3}, {"policy": "round_robin", "low": 0.5}],
    }  # fmt: skip
    status, said, _ = _run(capsysbinary, tmp_path, trace, question)
    assert status == 0
    *told, last = said
    done = [line["progress"]["done"] for line in told]
    assert done == sorted(done) and done[-1] == told[-1]["progress"]["of"] == 120 * 6
    assert {line["progress"]["scenario"] for line in told} == {"as it is", "more", "low 0.5, policy round_robin"}
    answer = last["answer"]
    base, more, _ = answer["scenarios"]
    assert base["hit_token_share"]["mean"] == pytest.approx(HEAD_BLOCKS / BLOCKS, abs=0.02)
    assert abs(answer["error"]["hit_token_share"]) < 0.02 and answer["measured"]["ttft_p95_s"] == 0.12
    assert (base["cost_per_h"], more["cost_per_h"]) == (10.0, 15.0)
    assert base["gpu_seconds_saved_against_as_it_is"] is None and more["gpu_seconds_saved_against_as_it_is"] is not None
    assert answer["sampled"] == {"share": 1.0, "scaled": "Every session was recorded.", "dropped": 0}


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (b"{", "the question is not JSON"),
        ({"workers": 2}, "scenarios"),
        ({"workers": 2, "scenarios": []}, "ask for 1 to 12 scenarios"),
        ({"workers": 2, "scenarios": [{}], "profile": "tpu"}, "profile is one of"),
        ({"workers": 2, "scenarios": [{"name": "x", "policy": "magic"}]}, "scenario 'x': policy is one of"),
        ({"workers": 2, "scenarios": [{"low": 0.9, "high": 0.8}]}, "watermarks are 0 < low < high"),
        ({"workers": 0, "scenarios": [{}]}, "workers are between 1 and 1024"),
        ({"workers": 2, "scenarios": [{}], "kv_capacity_tokens": 600}, "too few requests that fit"),
        ({"workers": 2, "scenarios": [{"wrokers": 3}]}, "wrokers"),
    ],
)
def test_a_wrong_question_is_one_sentence_and_status_2(
    capsysbinary: Any, tmp_path: Path, question: object, words: str
) -> None:
    trace = _write(tmp_path / "t.jsonl", [_request(number) for number in range(4)])
    status, said, err = _run(capsysbinary, tmp_path, trace, question)
    assert status == 2 and said == []
    (line,) = err.decode().splitlines()
    assert line.startswith("what-if: ") and words in line


@pytest.mark.parametrize(
    "content", [b"", b"\x00\xff", b'{"format": "other/9"}', b'{"format": "tidemark-recording/1"}\n{}']
)
def test_a_file_that_is_no_recording_is_one_sentence(capsysbinary: Any, tmp_path: Path, content: bytes) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_bytes(content)
    status, _, err = _run(capsysbinary, tmp_path, trace, {"workers": 1, "scenarios": [{}]})
    assert status == 2 and err.startswith(b"what-if: ") and err.count(b"\n") == 1
    status, _, err = _run(capsysbinary, tmp_path, tmp_path / "none", {"workers": 1, "scenarios": [{}]})
    assert status == 2 and b"cannot be read" in err


def test_a_share_of_the_traffic_is_filled_up_with_copies_that_share_the_heads_alone() -> None:
    prompts = prompts_of([_request(number, share=0.5) for number in range(400)])
    assert {copies(prompt, 1.0, 1) for prompt in prompts} == {2}
    assert sum(copies(prompt, 0.25, 1) for prompt in prompts) == pytest.approx(200, abs=45)
    workload = RecordedWorkload(
        prompts[:1], bytes_per_token([prompts[0].recorded]), H200_8B, wanted=1.0, seed=1, block_tokens=128
    )
    one, other = workload.first()
    for request in (one, other):
        workload.name_blocks(request)
    same = [a == b for a, b in zip(one.chain, other.chain, strict=True)]
    assert same == [True] * HEAD_BLOCKS + [False] * (len(same) - HEAD_BLOCKS)
    assert one.text_hashes[:HEAD_BLOCKS] == other.text_hashes[:HEAD_BLOCKS]


def test_changing_text_in_front_is_moved_behind_what_prompts_share() -> None:
    broken = Broken("acme/chat", "", prompts=60, looked_at=60, position_bytes=0, lost_bytes=HEAD_BLOCKS * 512)
    recording = Recording(RecordingHead(broken=[broken]), [_request(number, changed=True) for number in range(120)])
    question = Question(workers=1, scenarios=[Asked(), Asked(template_fixed=True)])
    base, fixed = WhatIf(question, recording, lambda *told: None).answer().scenarios
    assert base.hit_token_share is not None and fixed.hit_token_share is not None
    assert base.hit_token_share.mean == 0
    assert fixed.hit_token_share.mean == pytest.approx(HEAD_BLOCKS / BLOCKS, abs=0.02)
    unbroken = WhatIf(question, Recording(RecordingHead(), recording.requests), lambda *told: None).answer()
    assert "No changing text" in unbroken.scenarios[1].note


def test_a_large_fleet_is_a_slice_and_more_load_is_more_sessions() -> None:
    requests = [_request(number, at=number / 4) for number in range(400)]
    question = read_question(b'{"workers": 32, "scenarios": [{}, {"workers": 16}, {"load_factor": 2}]}')
    answer = WhatIf(question, Recording(RecordingHead(), requests), lambda *told: None).answer()
    base, half, double = (outcome.requests.mean for outcome in answer.scenarios)
    assert answer.slice_workers == 8
    assert "workers" not in answer.sampled.scaled, "tenants read these words, and not how large the fleet is"
    assert base == pytest.approx(75, abs=25) and half > 1.4 * base and double > 1.4 * base


def test_mooncakes_format_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [{"timestamp": 1000 * n, "input_length": 1100, "output_length": 9, "hash_ids": [7, 8 + n]} for n in range(3)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    first, second, _ = load(f"file:{path}").requests
    assert first.anchors[:32] == second.anchors[:32] and first.anchors[32:40] != second.anchors[32:40]
    assert (first.prompt_tokens, second.at, first.cached_tokens) == (1100, 1.0, None)


def test_runs_side_by_side_answer_the_same(tmp_path: Path) -> None:
    requests = [_request(number, at=number / 2) for number in range(150)]
    question = Question(
        workers=2, seeds=[1, 2], scenarios=[Asked(), Asked(name="more", workers=3), Asked(policy="round_robin")]
    )
    recording = Recording(RecordingHead(), requests)
    told: dict[int, list[tuple[int, int]]] = {1: [], 4: []}
    answers = [
        WhatIf(question, recording, lambda done, of, *_, to=to: told[to].append((done, of)), processes=to).answer()
        for to in told
    ]
    assert msgspec.json.encode(answers[0]) == msgspec.json.encode(answers[1])
    for words in told.values():
        dones = [done for done, _ in words]
        assert dones == sorted(dones) and words[-1] == (900, 900) and dones[-2] == 900, words[-3:]
