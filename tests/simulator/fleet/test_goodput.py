"""The goodput suite: its set-ups, what its bars say of rows, and a sweep that goes on where it was ended."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from simulator.fleet import kept
from simulator.fleet.goodput import SETUPS, bars, cases
from simulator.fleet.hardware import H200_8B
from simulator.fleet.kept import KeptRuns
from simulator.fleet.sweep import UNSEEN, Case, run_case, run_cases
from simulator.fleet.table import Row

SMALL = Case("kb8k", 2, 0.3, "round_robin", 1, H200_8B.name, 30)


def test_eighteen_set_ups_over_all_workloads_sizes_and_loads_on_unseen_parts() -> None:
    assert len(SETUPS) == len(set(SETUPS)) == 18
    traces, workers, loads = (set(column) for column in zip(*SETUPS, strict=True))
    assert traces == {"kb8k", "weka", "conversation", "toolagent"}
    assert workers == {4, 16, 64} and loads == {0.3, 0.6, 0.9}
    planned = list(cases(seeds=(1, 2, 3), profile=H200_8B.name, policies=("tidemark", "oracle")))
    assert len(planned) == 18 * 2 * 3 and {case.part for case in planned} == {UNSEEN}


def _row(policy: str, *, of_oracle: float, p95_s: float = 1.0, hits: float = 0.8, evicted: float = 100.0) -> Row:
    fields = {field.name: 0.0 for field in dataclasses.fields(Row)}
    return Row(**fields | {
        "trace": "weka", "workers": 4, "load": 0.9, "policy": policy, "goodput_of_oracle": of_oracle,
        "ttft_p95_s": p95_s, "hit_token_share": hits, "evicted_blocks_per_min": evicted,
    })  # fmt: skip


OTHERS = (_row("oracle", of_oracle=1.0), _row("round_robin", of_oracle=0.5, p95_s=2.0, hits=0.2))


@pytest.mark.parametrize(
    ("ours", "greedy", "missed"),
    [
        ({"of_oracle": 1.05, "evicted": 40.0}, {"of_oracle": 0.9}, set()),
        ({"of_oracle": 0.95, "evicted": 40.0}, {"of_oracle": 0.9}, {"goodput ÷ oracle, mean"}),
        ({"of_oracle": 1.05, "evicted": 40.0}, {"of_oracle": 1.1}, {"mean ÷ the best other rule's"}),
        (
            {"of_oracle": 1.05, "evicted": 60.0},
            {"of_oracle": 0.9},
            {"evictions ÷ longest_prefix's at equal hits, mean"},
        ),
        (
            {"of_oracle": 1.05, "evicted": 40.0, "p95_s": 2.1},
            {"of_oracle": 0.9},
            {"set-ups with a TTFT p95 above round robin's"},
        ),
        (
            {"of_oracle": 0.8, "evicted": 40.0},
            {"of_oracle": 0.7},
            {"goodput ÷ oracle, mean", "goodput ÷ oracle, worst"},
        ),
    ],
)
def test_a_bar_is_missed_by_what_it_speaks_of(ours: dict, greedy: dict, missed: set[str]) -> None:
    found = bars([*OTHERS, _row("tidemark", **ours), _row("longest_prefix", **greedy)])
    assert {bar.name for bar in found if bar.ok is False} == missed


def test_evictions_are_compared_at_equal_hits_only() -> None:
    found = bars([*OTHERS, _row("tidemark", of_oracle=1.0, hits=0.9), _row("longest_prefix", of_oracle=0.9, hits=0.7)])
    assert [bar.ok for bar in found if bar.name.startswith("evictions")] == [None]


def test_an_ended_sweep_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = KeptRuns(tmp_path / "kept.jsonl")
    todo = [SMALL, dataclasses.replace(SMALL, seed=2)]
    first = run_case(SMALL)
    runs.add(SMALL, first)
    with (tmp_path / "kept.jsonl").open("a") as out:
        out.write('{"sources": "cut off he')
    ran: list[Case] = []
    results = run_cases(todo, processes=1, known=runs.read(), keep=lambda case, result: ran.append(case))
    assert ran == todo[1:] and results[SMALL] == first and list(results) == todo
    kept.sources_digest.cache_clear()
    monkeypatch.setattr(kept, "sources_digest", lambda: "of other sources")
    assert runs.read() == {}
