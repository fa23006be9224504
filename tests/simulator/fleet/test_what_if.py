"""What a change of the fleet would do, from figures alone."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from simulator.fleet.what_if import Question, answer

BASE: dict[str, Any] = {
    "requests_per_s": 6.0,
    "prompt_tokens": 3200,
    "output_tokens": 120,
    "hit_share": 0.6,
    "weights": [100, 50, 33, 25, 20, 16],
    "prefill_tokens_per_s": 9000,
    "kv_capacity_tokens": 153_600,
    "good_s": 0.5,
    "seeds": [1],
}


def _scenario(name: str = "as it is", **changes: Any) -> dict[str, Any]:
    return {"name": name, "workers": 2, "low": 0.65, "high": 0.85, "broken": 0.2} | changes


def _answer(*scenarios: dict[str, Any], seconds: float = 60, **changes: Any) -> dict[str, Any]:
    question = msgspec.convert(BASE | {"scenarios": list(scenarios), "seconds_max": seconds} | changes, Question)
    return answer(question, clock=iter(range(1000)).__next__)


def test_the_unchanged_fleet_delivers_what_was_measured_and_says_how_far_off_it_is() -> None:
    found = _answer(_scenario())
    [base] = found["scenarios"]
    assert base["hit_token_share"]["mean"] == pytest.approx(0.6, abs=0.02 + found["error"])
    assert found["error"] < 0.05


def test_more_workers_answer_sooner_and_mended_prompts_hit_more() -> None:
    base, more, mended = _answer(_scenario(), _scenario("more", workers=4), _scenario("mended", broken=0.0))[
        "scenarios"
    ]
    assert more["ttft_p95_s"]["mean"] < base["ttft_p95_s"]["mean"]
    assert mended["hit_token_share"]["mean"] > base["hit_token_share"]["mean"] + 0.05


def test_a_large_fleet_is_a_slice_with_its_share_of_the_traffic() -> None:
    scenarios = [_scenario(workers=40), _scenario("more", workers=80)]
    found = _answer(*scenarios, requests_per_s=160.0)
    assert found["slice"] == 8
    base, more = found["scenarios"]
    assert more["ttft_p95_s"]["mean"] < base["ttft_p95_s"]["mean"]


def test_it_ends_in_time_and_names_what_it_left_out() -> None:
    found = _answer(_scenario(), _scenario("late"), _scenario("later"), seconds=2)
    assert [row["name"] for row in found["scenarios"]] == ["as it is"] and found["left_out"] == ["late", "later"]


def test_it_refuses_what_it_is_too_coarse_for() -> None:
    with pytest.raises(ValueError, match="grain"):
        _answer(_scenario(), prompt_tokens=500)


def test_it_speaks_json_as_a_process_of_its_own() -> None:
    question = json.dumps(BASE | {"scenarios": [_scenario()]})
    done = subprocess.run(
        [sys.executable, "-m", "simulator.fleet.what_if"], input=question.encode(), capture_output=True, timeout=60
    )
    assert json.loads(done.stdout)["scenarios"][0]["name"] == "as it is"
    broken = subprocess.run(
        [sys.executable, "-m", "simulator.fleet.what_if"], input=b"{}", capture_output=True, timeout=60
    )
    assert broken.returncode == 2 and broken.stderr.startswith(b"what_if: ")
