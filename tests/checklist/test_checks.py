"""Each line of the checklist: green with evidence, red with what is wrong, unknown where nothing was seen."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.checklist.checks import CHECKS, GREEN, RED, UNKNOWN, judged
from controlplane.checklist.facts import Facts, PoolFact, TemplateFact, WorkerFact
from controlplane.telemetry.figures import HotPrefix
from router.contract.histogram import bucket_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FAST, SLOW = str(bucket_of(100)), str(bucket_of(600))
REQUESTS: dict[str, Any] = {
    "requests": 400, "errors": {"upstream_error": 2, "bad_request": 90}, "usage_known": 390, "hit_known": 389,
    "hit_tokens": 90_000, "hit_prompt_tokens": 120_000, "predicted_hit_tokens": 91_000, "slo_known": 400,
    "ttft_hit": {FAST: 300}, "ttft_miss": {SLOW: 60}, "isolation_checked": 389,
}  # fmt: skip
CANDIDATE = {"worker": "llama/w1", "saved_ms": 300, "queue_ms": 40, "pressure_ms": 4, "transfer_ms": 12}


def _finding(kind: str) -> Any:
    return SimpleNamespace(kind=kind, subject="llama/w1", message=f"It is {kind}.")


def _canary(verdict: str = "green", *, worker: str = "llama/w1", age_h: float = 0.5, endpoint: str = "chat") -> Any:
    return SimpleNamespace(
        worker=SimpleNamespace(worker_id=worker), verdict=verdict, endpoint=endpoint,
        checked_at=NOW - timedelta(hours=age_h),
    )  # fmt: skip


def _worker(name: str = "w1", **values: Any) -> WorkerFact:
    given = {"health": "ok", "waiting": 0.0, "kv_state": "live", "block_size": 16} | values
    return WorkerFact(worker_id=f"llama/{name}", pool="llama", **given)


POOL = PoolFact("llama", "tidemark", 16, "llama-3", has_connector=True, transfer_gib_per_s=20.0)
HOT = HotPrefix("ab12", "acme/a", "llama", 2048, 300, {"llama/w1": 160, "llama/w2": 140}, 160 / 300)
WELL = Facts(
    now=NOW,
    workers=[_worker("w1"), _worker("w2")],
    pools=[POOL],
    requests=REQUESTS,
    decisions=[{"candidates": [CANDIDATE]}],
    hot=[HOT],
    prompts_looked_at=500,
    prompts_cut=5,
    templates=[TemplateFact("acme/desk@1", (), 1, 0)],
    canaries=[_canary(), _canary(worker="llama/w2"), _canary("inconclusive", endpoint="embeddings")],
)


def _requests(**values: Any) -> Facts:
    return replace(WELL, requests=REQUESTS | values)


RED_FACTS = {
    "prompt_order": replace(WELL, templates=[TemplateFact("acme/desk@1", ("dynamic_before_static",), 1, 0)]),
    "dynamic_last": replace(WELL, findings=[_finding("prefix_breaker")]),
    "token_blocks": replace(WELL, pools=[replace(POOL, tokenizer="")]),
    "weighing": replace(WELL, pools=[replace(POOL, routing="round_robin")]),
    "weak_index": replace(WELL, findings=[_finding("kv_events_degraded")]),
    "hits_recorded": _requests(hit_known=200),
    "ttft_compared": _requests(ttft_hit={SLOW: 100}, ttft_miss={FAST: 100}),
    "hot_spots": replace(
        WELL, hot=[replace(HOT, by_worker={"llama/w1": 300}, top_share=1.0)],
        workers=[_worker("w1", waiting=4.0), _worker("w2")],
    ),
    "transfer_worth": replace(WELL, pools=[replace(POOL, transfer_gib_per_s=None)]),
    "separated": replace(WELL, findings=[_finding("canary_leaks")]),
    "regression_tested": replace(WELL, templates=[TemplateFact("acme/desk@1", (), 1, 1)]),
    "fallback": _requests(errors={"no_worker": 40}),
}  # fmt: skip
UNKNOWN_FACTS = {
    "prompt_order": replace(WELL, templates=[]),
    "dynamic_last": replace(WELL, prompts_looked_at=19),
    "token_blocks": replace(WELL, workers=[_worker(block_size=None)]),
    "weighing": replace(WELL, decisions=[{"candidates": [CANDIDATE | {"queue_ms": 0}]}]),
    "weak_index": replace(WELL, workers=[_worker(kv_state="unknown")]),
    "hits_recorded": _requests(usage_known=0, hit_known=0),
    "ttft_compared": _requests(ttft_miss={SLOW: 19}),
    "hot_spots": replace(WELL, hot=[]),
    "transfer_worth": replace(WELL, decisions=[{"candidates": [CANDIDATE | {"transfer_ms": 0}]}]),
    "separated": replace(WELL, canaries=[_canary()]),
    "regression_tested": replace(WELL, templates=[TemplateFact("acme/desk@1", (), 0, 0)]),
    "fallback": _requests(ttft_miss={}),
}


def _line(facts: Facts, key: str) -> Any:
    return next(line for line in judged(facts) if line.key == key)


@pytest.mark.parametrize("key", [check.key for check in CHECKS])
def test_a_line_is_green_with_figures(key: str) -> None:
    line = _line(WELL, key)
    assert line.state == GREEN and any(char.isdigit() for char in line.evidence), line


@pytest.mark.parametrize("key", [check.key for check in CHECKS])
def test_a_line_is_red_and_says_of_what(key: str) -> None:
    line = _line(RED_FACTS[key], key)
    assert line.state == RED and line.evidence.endswith("."), line


@pytest.mark.parametrize("key", [check.key for check in CHECKS])
def test_a_line_is_unknown_where_nothing_was_seen(key: str) -> None:
    assert _line(UNKNOWN_FACTS[key], key).state == UNKNOWN


def test_an_empty_fleet_is_never_green() -> None:
    assert {line.state for line in judged(Facts(now=NOW))} == {UNKNOWN}


@pytest.mark.parametrize(
    ("facts", "key", "state"),
    [
        (replace(WELL, pools=[replace(POOL, has_connector=False)]), "transfer_worth", GREEN),
        (replace(WELL, workers=[_worker(kv_state="")]), "weak_index", GREEN),
        (replace(WELL, canaries=[_canary(age_h=3), _canary(worker="llama/w2")]), "separated", UNKNOWN),
        (replace(WELL, canaries=[*WELL.canaries, _canary("inconclusive")]), "separated", UNKNOWN),
        (replace(WELL, findings=[_finding("isolation_violation")]), "separated", RED),
        (replace(WELL, findings=[_finding("tokenizer_changed")]), "regression_tested", RED),
        (replace(WELL, findings=[_finding("parity_mismatch")]), "token_blocks", RED),
        (_requests(errors={"bad_request": 300}), "fallback", GREEN),
        (replace(WELL, hot=[replace(HOT, by_worker={"llama/w1": 300}, top_share=1.0)]), "hot_spots", GREEN),
    ],
)
def test_what_tips_a_line(facts: Facts, key: str, state: str) -> None:
    assert _line(facts, key).state == state


def test_the_list_has_twelve_lines_in_the_order_of_the_requirement() -> None:
    keys = [line.key for line in judged(WELL)]
    assert len(keys) == len(set(keys)) == 12 and keys[0] == "prompt_order" and keys[-1] == "fallback"
