"""A change for speed changes no figure: digests of whole runs, by rules that use nothing of the router's core.

A change of what is modelled changes them: then the new ones are written here, with the reason in the commit.
"""

from __future__ import annotations

import hashlib

import pytest

from simulator.fleet.hardware import H100_8B, H200_8B
from simulator.fleet.sweep import Case, run_case

FIGURES = (
    "requests", "finished", "unfinished", "measured", "hit_token_share", "ttft_mean_s", "ttft_p50_s", "ttft_p95_s",
    "good", "goodput_per_s", "prefill_max_over_mean", "evicted_blocks_per_min", "spills", "preemptions", "busy_share",
)  # fmt: skip


@pytest.mark.parametrize(
    ("case", "digest"),
    [
        (Case("weka", 2, 0.9, "longest_prefix", 1, H100_8B.name, 150), "96a7ec25582f9430"),
        (Case("weka", 2, 1.5, "oracle", 1, H100_8B.name, 120), "99e3f865874cbf3a"),
        (Case("conversation", 2, 0.9, "block_cost", 1, H100_8B.name, 150), "b55699261989e5aa"),
        (Case("toolagent", 2, 0.9, "weighted_scorers", 1, H100_8B.name, 150), "a32a858e6347b386"),
        (Case("kb200k", 2, 1.5, "round_robin", 1, H200_8B.name, 60), "59df92618e7e1ded"),
    ],
    ids=lambda value: value.trace if isinstance(value, Case) else "",
)
def test_runs_give_the_figures_they_gave(case: Case, digest: str) -> None:
    result = run_case(case).as_dict()
    figures = repr([result[name] for name in FIGURES]).encode()
    assert hashlib.blake2b(figures, digest_size=8).hexdigest() == digest
