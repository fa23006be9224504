"""`python -m simulator validate`: the modelled fleet against workers that run."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx

from simulator.fleet.calibrate_metrics import MetricsError
from simulator.fleet.calibrated_profile import ProfileFile, write_profile
from simulator.fleet.hardware import H200_8B
from simulator.fleet.validate import Comparison, Shape, calibrated, compared, plan
from simulator.fleet.validate_wire import ValidationError, ask_all, facts_of

TTFT_RATIO_OFF_MAX = 0.25
"""How far the mean of simulated times may be from the mean of the real ones."""


def add_validate(subcommands: Any) -> None:  # argparse names the type of add_subparsers() only privately
    parser = subcommands.add_parser("validate", help="the modelled fleet against vLLM workers that run and are idle")
    parser.add_argument("--url", action="append", required=True, help="of a worker; repeat it for several alike")
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch-tokens", type=int, default=2_048, help="the workers' --max-num-batched-tokens")
    parser.add_argument("--conversations", type=int, choices=range(1, 65), metavar="1…64", default=8)
    parser.add_argument("--turns", type=int, choices=range(1, 21), metavar="1…20", default=5)
    parser.add_argument(
        "--rounds", type=int, choices=range(1, 101), metavar="1…100", default=3,
        help="of the same requests with other text; times are medians over them, so that a busy machine needs more",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the measured profile, for --profile")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    shape = Shape(len(options.url), options.conversations, options.turns, options.rounds, options.seed)
    try:
        found, profile = asyncio.run(validate(options.url, options.model, shape, batch_tokens=options.batch_tokens))
    except (ValidationError, MetricsError, ValueError, httpx.HTTPError) as error:
        print(f"validate: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print(json.dumps(asdict(found), indent=1) if options.json else text(found))
    if options.out:
        write_profile(options.out, profile)
    return 0 if is_close(found) else 1


async def validate(
    urls: Sequence[str], model: str, shape: Shape, *, batch_tokens: int
) -> tuple[Comparison, ProfileFile]:
    """Raises ValidationError, MetricsError, ValueError or httpx.HTTPError."""
    text = random.Random()  # noqa: S311  no secret, and no other run's text, which would be in the caches
    async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
        facts = await facts_of(client, urls[0], batch_tokens=batch_tokens)
        groups = plan(shape, facts, text=text)
        real = await ask_all(client, urls, model, groups)
    found = compared(groups, real, facts, shape)
    profile, fit = calibrated(groups, real, facts)
    measured = ["prefill_tokens_per_s", "attention_doubling_tokens", "decode_base_s", "kv_capacity_tokens"]
    return found, ProfileFile(profile, measured, H200_8B.name, "requests", fit.overhead_s)


def is_close(found: Comparison) -> bool:
    return found.equal_hits == found.requests and abs(found.ttft_ratio_mean - 1) <= TTFT_RATIO_OFF_MAX


def text(found: Comparison) -> str:
    fit = found.fit
    return "\n".join([
        f"hit tokens equal in {found.equal_hits} of {found.requests} requests ({found.hit_tokens:,} tokens hit)",
        f"TTFT, simulated ÷ real: {found.ttft_ratio_mean:.2f} of the means, {found.ttft_ratio_median:.2f} in the"
        f" median, nine tenths {found.ttft_ratio_low:.2f} to {found.ttft_ratio_high:.2f}",
        f"fitted on {fit.points} lengths: {fit.tokens_per_s:,.0f} tokens/s, attention doubles at"
        f" {fit.attention_doubling_tokens:,}, {1_000 * fit.overhead_s:.1f} ms a request, {1_000 * found.step_s:.1f} ms"
        f" a step; off by {100 * fit.error:.0f} % in the median",
    ])  # fmt: skip
