"""Whole runs: nothing is lost, a seed decides everything, the load means what it says."""

from __future__ import annotations

import dataclasses
import random

import pytest

from simulator.fleet.agents import AgentWorkload
from simulator.fleet.conversation import ConversationWorkload
from simulator.fleet.hardware import H100_8B, H200_8B
from simulator.fleet.policies import POLICIES
from simulator.fleet.run import FleetRun
from simulator.fleet.sweep import SEEN, UNSEEN, Case, Grid, conversation_rows, run_case, sweep, weka_sessions
from simulator.fleet.table import as_json, as_markdown, as_text, overall, rows_of
from simulator.fleet.workload import BLOCK_TOKENS, Request
from simulator.replay import load_conversation, load_weka

CASE = Case("conversation", 2, 0.6, "tidemark", 1, H200_8B.name, 200)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_finishes_or_is_counted_unfinished(policy: str) -> None:
    result = run_case(dataclasses.replace(CASE, policy=policy))
    assert result.requests == 200 == result.finished + result.unfinished
    assert 0 < result.measured < result.requests
    assert result.good <= result.measured


def test_what_comes_too_late_is_unfinished_and_counts_with_its_wait() -> None:
    result = run_case(dataclasses.replace(CASE, policy="longest_prefix", load=3.0))
    assert result.unfinished > 0
    assert result.requests == result.finished + result.unfinished
    assert result.ttft_p95_s is not None and result.ttft_p95_s > 2


@pytest.mark.parametrize(
    ("trace", "policy"), [("conversation", "tidemark"), ("conversation", "power_of_two"), ("weka", "tidemark")]
)
def test_a_seed_decides_everything(trace: str, policy: str) -> None:
    case = dataclasses.replace(CASE, trace=trace, policy=policy, requests=120)
    assert run_case(case) == run_case(case)
    assert run_case(case) != run_case(dataclasses.replace(case, seed=2))


def test_results_do_not_depend_on_the_number_of_processes() -> None:
    grid = Grid(["conversation"], [2], [0.5], ["round_robin", "oracle"], [1], H200_8B.name, 60)
    assert sweep(grid, processes=1) == sweep(grid, processes=2)


def test_the_unseen_parts_of_the_traces_share_nothing_with_the_seen_ones() -> None:
    first, later = (conversation_rows(part) for part in (SEEN, UNSEEN))
    assert len(first) == 4_000 and len(later) == 8_031
    assert max(row.timestamp for row in first) <= min(row.timestamp for row in later)
    seen, unseen = ({turn.session for session in weka_sessions(part) for turn in session} for part in (SEEN, UNSEEN))
    assert len(seen) == len(unseen) == 150 and not seen & unseen
    one, other = (dataclasses.replace(CASE, part=part, requests=60) for part in (SEEN, UNSEEN))
    assert run_case(one) != run_case(other)


def test_an_open_loop_offers_the_load_it_names() -> None:
    workload = ConversationWorkload(load_conversation(), H200_8B, workers=4, load=0.5, requests=400, seed=1)
    arrivals = [request.arrival_s for request in workload.first()]
    assert min(arrivals) == 0 and max(arrivals) == pytest.approx(workload.duration_s)
    assert len(arrivals) * workload.demand_s / workload.duration_s == pytest.approx(0.5 * 4)


def test_a_closed_loop_is_bounded_by_compute_or_memory() -> None:
    trace = load_weka()
    large, small = (
        AgentWorkload(trace, profile, workers=4, load=0.9, requests=400, seed=1) for profile in (H200_8B, H100_8B)
    )
    tokens = [turn.input_length + turn.output_length for session in trace for turn in session]
    mean_context = sum(tokens) / len(tokens)
    assert large.sessions * mean_context == pytest.approx(0.9 * 4 * H200_8B.kv_capacity_tokens, rel=0.05)
    assert small.sessions < large.sessions / 3


def test_a_turn_of_an_agent_goes_on_behind_its_last_answer() -> None:
    workload = AgentWorkload(load_weka(), H200_8B, workers=1, load=0.1, requests=400, seed=3)
    request: Request | None = workload.first()[0]
    continued = turns = 0
    for _ in range(40):
        assert request is not None
        following = workload.after(request, request.arrival_s + 1)
        if following is None:
            break
        if following.affinity == request.affinity:
            turns += 1
            shared = sum(one == other for one, other in zip(request.chain, following.chain, strict=False))
            continued += shared >= request.prompt_tokens // BLOCK_TOKENS
        request = following
    assert turns > 5 and continued > turns / 2


def test_conversations_reach_the_traces_own_ceiling_with_an_endless_cache() -> None:
    """The trace's requests repeat 30 to 45 % of their tokens (37 % over its whole length)."""
    endless = dataclasses.replace(H200_8B, kv_capacity_tokens=10**9)
    workload = ConversationWorkload(load_conversation(), endless, workers=1, load=0.05, requests=4_000, seed=1)
    result = FleetRun(workload, POLICIES["oracle"](1, endless, random.Random(1)), endless, workers=1).run()
    assert result.hit_token_share is not None and 0.30 < result.hit_token_share < 0.45


def test_a_table_compares_with_the_oracle_of_the_same_seed() -> None:
    cases = [
        dataclasses.replace(CASE, policy=policy, seed=seed) for policy in ("oracle", "tidemark") for seed in (1, 2)
    ]
    run = run_case(CASE)
    goodput = dict(zip(cases, (2.0, 4.0, 1.0, 4.0), strict=True))
    results = {case: dataclasses.replace(run, goodput_per_s=goodput[case]) for case in cases}
    rows = rows_of(results)
    assert [(row.policy, row.goodput_of_oracle) for row in rows] == [("oracle", 1.0), ("tidemark", 0.75)]
    assert [(each.policy, each.goodput_of_oracle_worst) for each in overall(rows)] == [
        ("oracle", 1.0),
        ("tidemark", 0.75),
    ]
    assert "| policy | conversation 2 × 0.6 |\n|---|---|\n| oracle | 1.00 |\n| tidemark | 0.75 |" in as_markdown(rows)
    assert "tidemark" in as_text(rows)
    assert len(as_json(rows, results)["runs"]) == 4  # type: ignore[arg-type]


def test_without_an_oracle_the_ratio_is_unknown() -> None:
    rows = rows_of({CASE: run_case(CASE)})
    assert rows[0].goodput_of_oracle is None
    assert "–" in as_text(rows)


def test_four_routers_serve_nearly_as_well_as_one() -> None:
    """Turns reach a router at random: without a word of each other they would compute a conversation four times."""
    case = Case("toolagent", 8, 0.6, "tidemark", 1, H200_8B.name, 1_200)
    one, four = (run_case(dataclasses.replace(case, policy=name)) for name in ("tidemark", "tidemark_4_routers"))
    assert one.hit_token_share and four.hit_token_share
    assert four.hit_token_share >= one.hit_token_share - 0.05
    assert four.goodput_per_s >= 0.95 * one.goodput_per_s
