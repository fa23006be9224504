"""Generated workloads: equal texts have equal blocks, parameters mean what they say, a seed decides everything."""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.fleet.generated.kinds import KINDS, Flood, KnowledgeBase, PrefixBreakers, ToolAgents, Zipf
from simulator.fleet.generated.prompts import Segment, block_names
from simulator.fleet.generated.sessions import SessionWorkload
from simulator.fleet.hardware import H200_8B
from simulator.fleet.sweep import UNSEEN, Case, run_case
from simulator.fleet.workload import BLOCK_TOKENS

segments = st.lists(st.builds(Segment, st.sampled_from("abc"), st.integers(0, 700)), max_size=6)


def _prompts(kind: object, sessions: int, seed: int = 1) -> list:
    return [prompt for session in islice(kind.sessions(random.Random(seed)), sessions) for prompt in session]


@given(segments, segments, st.sampled_from((16, 128, 512)))
def test_prompts_share_exactly_the_blocks_of_their_common_segments(left, right, size) -> None:
    one, other = block_names(left, size), block_names(right, size)
    common = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            # Two texts with one name are equal as far as both go.
            common += min(a.tokens, b.tokens) if a.name == b.name else 0
            break
        common += a.tokens
    shared = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    assert shared >= common // size - 1
    assert shared <= max(common // size, 0) or left == right
    assert len(one) == sum(each.tokens for each in left) // size


@pytest.mark.parametrize("trace", KINDS)
def test_every_kind_runs_and_a_seed_decides_it(trace: str) -> None:
    case = Case(trace, 2, 0.3, "tidemark", 1, H200_8B.name, 40)
    result = run_case(case)
    assert result.requests > 5 and result == run_case(case)
    assert result != run_case(Case(trace, 2, 0.3, "tidemark", 1, H200_8B.name, 40, UNSEEN))


def test_a_breaker_leaves_nothing_to_hit() -> None:
    case = Case("breakers", 2, 0.3, "oracle", 1, H200_8B.name, 60)
    assert run_case(case).hit_token_share == 0
    assert (run_case(Case("kb8k", 2, 0.3, "oracle", 1, H200_8B.name, 200)).hit_token_share or 0) > 0.5


def test_the_tool_agents_lengths_are_about_the_published_means() -> None:
    prompts = _prompts(ToolAgents(), 400)
    assert sum(prompt.tokens for prompt in prompts) / len(prompts) == pytest.approx(8_596, rel=0.1)
    assert sum(prompt.output_tokens for prompt in prompts) / len(prompts) == pytest.approx(182, rel=0.1)


def test_a_later_turn_repeats_the_one_before_and_its_answer() -> None:
    first, second = next(iter(ToolAgents().sessions(random.Random(3))))[:2]
    whole = (first.tokens + first.output_tokens) // BLOCK_TOKENS
    assert second.chain()[:whole] == first.chain()[:whole]


def test_the_floods_share_is_what_it_says() -> None:
    prompts = _prompts(Flood(share=0.25), 2_000)
    flooding = sum(prompt.affinity == -1 for prompt in prompts)
    assert flooding / len(prompts) == pytest.approx(0.25, abs=0.03)


def test_shares_follow_zipfs_law() -> None:
    rng, texts = random.Random(5), Zipf(50, 1.0)
    drawn = Counter(texts.draw(rng) for _ in range(40_000))
    assert drawn[0] / drawn[9] == pytest.approx(10, rel=0.25)
    with pytest.raises(ValueError, match="nothing can be drawn"):
        Zipf(0, 1.0)


def test_the_rate_is_what_the_load_means() -> None:
    kind, workers, load = KnowledgeBase(), 4, 0.5
    workload = SessionWorkload(
        kind.sessions(random.Random(1)), H200_8B, workers=workers, load=load, requests=500, rng=random.Random(2)
    )
    arrivals = [request.arrival_s for request in workload.first()]
    assert len(arrivals) == 500 and max(arrivals) <= workload.duration_s
    assert 500 / workload.duration_s * workload.demand_s / workers == pytest.approx(load)
    assert PrefixBreakers(kind, share=0.0).share == 0.0
