"""`python -m simulator validate` against simulated workers: what is sent, compared and refused."""

from __future__ import annotations

import random

import pytest

from simulator.__main__ import main
from simulator.engine import EngineLimits
from simulator.fleet.calibrate_metrics import MetricsError
from simulator.fleet.validate import Comparison, Shape, WorkerFacts, plan
from simulator.fleet.validate_command import is_close, text, validate
from simulator.fleet.validate_wire import ValidationError
from tests.simulator.conftest import StartWorker

FACTS = WorkerFacts(block_tokens=16, kv_blocks=300, prompt_tokens_max=4_000, batch_tokens=2_048)
LIMITS = EngineLimits(blocks=301, block_size_tokens=16, max_num_batched_tokens=2_048, max_model_len=4_016)
SHAPE = Shape(workers=2, conversations=3, turns=3, rounds=2)


def test_rounds_have_one_shape_and_no_text_in_common() -> None:
    groups = plan(SHAPE, FACTS, text=random.Random(1))
    half = len(groups) // 2
    first, second = ([asked for group in part for asked in group] for part in (groups[:half], groups[half:]))
    assert [(a.worker, len(a.fresh), a.calibrates) for a in first] == [
        (a.worker, len(a.fresh), a.calibrates) for a in second
    ]
    assert not {a.conversation for a in first} & {a.conversation for a in second}
    assert not {a.fresh[:16] for a in first} & {a.fresh[:16] for a in second}
    assert max(len(group) for group in groups) == 2
    assert sum(not asked.calibrates for asked in first) == SHAPE.conversations * SHAPE.turns


async def test_modelled_and_simulated_workers_hit_the_same(start_worker: StartWorker) -> None:
    urls = [(await start_worker(limits=LIMITS)).url for _ in range(SHAPE.workers)]
    found, profile = await validate(urls, "sim-llama", SHAPE, batch_tokens=FACTS.batch_tokens)
    assert found.requests == SHAPE.rounds * SHAPE.conversations * SHAPE.turns
    assert found.equal_hits == found.requests and found.hit_tokens > 0
    assert profile.profile.kv_capacity_tokens == FACTS.kv_blocks * FACTS.block_tokens
    assert f"equal in {found.requests} of {found.requests} requests" in text(found)
    assert is_close(found) == (abs(found.ttft_ratio_mean - 1) <= 0.25)


async def test_a_worker_that_tells_no_cached_tokens_is_refused(start_worker: StartWorker) -> None:
    worker = await start_worker(limits=LIMITS, prompt_tokens_details=False)
    with pytest.raises(ValidationError, match="enable-prompt-tokens-details"):
        await validate([worker.url], "sim-llama", Shape(1), batch_tokens=FACTS.batch_tokens)


async def test_a_worker_whose_page_is_no_page_is_refused(start_worker: StartWorker) -> None:
    worker = await start_worker(limits=LIMITS)
    await worker.fault(metrics="garbage")
    with pytest.raises((MetricsError, ValidationError)):
        await validate([worker.url], "sim-llama", Shape(1), batch_tokens=FACTS.batch_tokens)


def test_nobody_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--url", "http://127.0.0.1:1", "--model", "m"]) == 2
    assert "validate: ConnectError" in capsys.readouterr().err


def test_hits_decide_before_times() -> None:
    usual = {"requests": 10, "equal_hits": 10, "hit_tokens": 5, "ttft_ratio_median": 1, "ttft_ratio_mean": 1.2,
             "ttft_ratio_low": 1, "ttft_ratio_high": 2, "fit": None, "step_s": 0.1}  # fmt: skip
    assert is_close(Comparison(**usual))
    assert not is_close(Comparison(**usual | {"equal_hits": 9}))
    assert not is_close(Comparison(**usual | {"ttft_ratio_mean": 0.7}))
