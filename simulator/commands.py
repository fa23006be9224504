"""The command line: flags to configurations. Flag names follow `vllm serve` where it has them."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

import msgspec

from simulator.clients import load_clients
from simulator.engine import EngineLimits
from simulator.faults import Faults, changed, parse_fault_flag
from simulator.profiles import compare_placements
from simulator.timing import KV_BLOCKS, PREFILL_TOKENS_PER_S, StepCost
from simulator.traffic import TRACE_NAMES, TrafficConfig, run_traffic, two_tenants
from simulator.worker import QUEUED_REQUESTS_MAX, WorkerConfig, serve

Subcommands = Any  # argparse names the type of add_subparsers() only privately


class UsageError(Exception):
    """A flag's value cannot be used; the message says which and why."""


def add_worker(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser("worker", help="serve one simulated vLLM worker")
    limits = EngineLimits()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--events-port", type=int, help="KV events, ZMQ PUB; default port + 1000, 0 = none")
    parser.add_argument("--replay-port", type=int, help="KV-event replay, ZMQ ROUTER; default port + 2000")
    parser.add_argument("--name", default="w1")
    parser.add_argument("--model", default="sim-llama")
    parser.add_argument("--blocks", type=int, default=KV_BLOCKS, help="KV blocks, one of them reserved")
    parser.add_argument("--block-size", type=int, default=limits.block_size_tokens, help="tokens")
    parser.add_argument("--max-num-seqs", type=int, default=limits.max_num_seqs)
    parser.add_argument("--max-num-batched-tokens", type=int, default=limits.max_num_batched_tokens)
    parser.add_argument("--max-model-len", type=int, default=limits.max_model_len)
    parser.add_argument("--max-num-queued-reqs", type=int, default=QUEUED_REQUESTS_MAX)
    parser.add_argument("--prefill-tps", type=float, default=PREFILL_TOKENS_PER_S, help="tokens per second")
    parser.add_argument("--time-scale", type=float, default=1.0, help="2 = the modelled GPU is twice as fast")
    parser.add_argument("--stream-interval", type=int, default=1, help="tokens in a stream chunk")
    parser.add_argument("--no-prompt-tokens-details", action="store_true", help="usage says null for cached tokens")
    parser.add_argument("--nixl", action="store_true", help="workers pull KV from each other, as by vLLM's connector")
    parser.add_argument("--api-key", help="asked for on /v1 paths")
    parser.add_argument("--seed", type=int, default=0, help="of random faults")
    parser.add_argument("--fault", action="append", default=[], metavar="NAME=VALUE")
    parser.set_defaults(run=_run_worker)


def _run_worker(options: argparse.Namespace) -> int:
    serve(worker_config(options))
    return 0


def worker_config(options: argparse.Namespace) -> WorkerConfig:
    """Raises UsageError."""
    for name in ("blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "prefill_tps",
                 "time_scale", "stream_interval"):  # fmt: skip
        if getattr(options, name) <= 0:
            raise UsageError(f"--{name.replace('_', '-')} must be positive")
    if options.blocks < 2:
        raise UsageError("--blocks must be at least 2: one block is reserved")
    return WorkerConfig(
        port=options.port,
        host=options.host,
        name=options.name,
        model=options.model,
        events_port=options.events_port,
        replay_port=options.replay_port,
        limits=EngineLimits(
            blocks=options.blocks,
            block_size_tokens=options.block_size,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_model_len=options.max_model_len,
        ),
        cost=StepCost(prefill_tokens_per_s=options.prefill_tps),
        time_scale=options.time_scale,
        max_num_queued_reqs=options.max_num_queued_reqs,
        stream_interval_tokens=options.stream_interval,
        prompt_tokens_details=not options.no_prompt_tokens_details,
        nixl=options.nixl,
        api_key=options.api_key,
        seed=options.seed,
        faults=_faults(options.fault),
    )


def _faults(flags: list[str]) -> Faults:
    faults = Faults()
    try:
        for flag in flags:
            faults = changed(faults, parse_fault_flag(flag))
    except (ValueError, msgspec.ValidationError) as error:
        raise UsageError(f"--fault: {error}") from None
    return faults


def add_traffic(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser("traffic", help="replay recorded traffic against a router")
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--keys", type=Path, required=True, help="JSON list of clients; see simulator/README.md")
    parser.add_argument("--trace", choices=TRACE_NAMES, default="weka")
    parser.add_argument("--speed", type=float, default=8.0, help="divides think times and gaps")
    parser.add_argument("--conversation-speed", type=float, help="of the conversation trace; default: --speed")
    parser.add_argument("--length-scale", type=float, help="default: 1/16 for WEKA, 1/8 for conversations")
    parser.add_argument("--sessions", type=int, default=26, help="WEKA sessions at once")
    parser.add_argument("--duration", type=float, help="seconds; default: until interrupted")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, help="where to write what was measured, as JSON")
    parser.add_argument("--probe-isolation", type=float, default=0.0, metavar="SHARE")
    parser.set_defaults(run=_run_traffic)


def _run_traffic(options: argparse.Namespace) -> int:
    summary = asyncio.run(run_traffic(traffic_config(options)))
    print(msgspec.json.format(msgspec.json.encode(summary)).decode())
    return 0


def traffic_config(options: argparse.Namespace) -> TrafficConfig:
    """Raises UsageError."""
    for name in ("speed", "conversation_speed", "length_scale", "sessions", "duration"):
        value = getattr(options, name)
        if value is not None and value <= 0:
            raise UsageError(f"--{name.replace('_', '-')} must be positive")
    if not 0 <= options.probe_isolation <= 1:
        raise UsageError("--probe-isolation is a share between 0 and 1")
    try:
        clients = load_clients(options.keys)
        if options.probe_isolation:
            two_tenants(clients)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return TrafficConfig(
        url=options.url,
        clients=clients,
        trace=options.trace,
        speed=options.speed,
        conversation_speed=options.conversation_speed,
        length_scale=options.length_scale,
        sessions=options.sessions,
        duration_s=options.duration,
        seed=options.seed,
        report=options.report,
        probe_share=options.probe_isolation,
    )


def add_placement(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser("placement", help="session-affine against round-robin placement, in process")
    parser.add_argument("--duration", type=float, default=180.0, help="virtual seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.set_defaults(run=_run_placement)


def _run_placement(options: argparse.Namespace) -> int:
    shares = compare_placements(duration_s=options.duration, seed=options.seed)
    print(msgspec.json.format(msgspec.json.encode(shares)).decode())
    return 0
