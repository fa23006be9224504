"""What recording costs a request: `python -m benchmarks.recording [--json]`. CPU time; no sockets.

A router at 1,000 requests a second, by the finished calls that its telemetry is handed: conversations under a few
system prompts. Timed are the look at every call and the second's end, with the default budget of 20 requests a second:
the mean over whole seconds once the share has settled, of the best round.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from time import process_time_ns
from typing import Any, cast

from benchmarks.report import Bar, Report
from router.adapters.recording import Recording
from router.call import Call
from router.contract.ids import KeyId, NamespaceId, PoolId, TenantId, WorkerId
from router.contract.secrets import FleetKey
from router.contract.snapshot import NamespacePolicy
from router.core.model import Decision, Fingerprint, Grant, Outcome, RoutingRequest

REQUESTS_PER_S = 1_000
BUDGET_PER_S = 20.0
SETTLES_S, SECONDS, ROUNDS = 30, 20, 2
HEADS, HEAD_BLOCKS, TAIL_BLOCKS = 20, 16, 24
"""A prompt has 40 blocks of 512 bytes: about 5,000 tokens."""
US_MAX = 1.0


def measure_recording(report: Report) -> None:
    for name, value in run().items():
        report.add(f"recording at 1,000 requests/s, {name}", "µs", value, bars=[Bar(US_MAX)] if name == "all" else [])


def run() -> dict[str, float]:
    """Microseconds a request: of all, and of one that is kept beyond what is not kept costs."""
    found = [_round(number) for number in range(ROUNDS)]
    return {name: min(each[name] for each in found) for name in found[0]}


def _round(number: int) -> dict[str, float]:
    rng = random.Random(number)
    recording = Recording(fleet_key=FleetKey(bytes(range(32))), per_s=BUDGET_PER_S, rng=rng)
    heads = [[rng.getrandbits(128) for _ in range(HEAD_BLOCKS)] for _ in range(HEADS)]
    total_ns = kept = 0
    for second in range(SETTLES_S + SECONDS):
        calls = [
            _call(rng.choice(heads) + [rng.getrandbits(128) for _ in range(TAIL_BLOCKS)]) for _ in range(REQUESTS_PER_S)
        ]
        started_ns = process_time_ns()
        for call in calls:
            recording.look(call, at=0.0)
        records = recording.take()
        if second >= SETTLES_S:
            total_ns += process_time_ns() - started_ns
            kept += len(records)
    return {"all": total_ns / 1e3 / (SECONDS * REQUESTS_PER_S), "kept a second": kept / SECONDS}


_GRANT = Grant(
    KeyId("0" * 12), TenantId("acme"), NamespaceId("acme/chat"),
    NamespacePolicy(TenantId("acme"), "chat", generation_nonce="1"), PoolId("p"), "llama", "salt" * 10,
    cache="acme/chat",
)  # fmt: skip
_OUTCOME = Outcome(
    ok=True, prompt_tokens=5_000, completion_tokens=100, cached_tokens=2_000, ttft_ms=90.0, duration_ms=900.0
)


def _call(hashes: list[int]) -> Call:
    """As the service leaves it: what telemetry reads is set, the connections are gone."""
    call = Call(cast(Any, None), cast(Any, None), cast(Any, None), "r")
    request = RoutingRequest("r", _GRANT, Fingerprint(hashes, 512, 512 * len(hashes)))
    call.decision, call.outcome = Decision(request, WorkerId("p/w1"), "http://w1", "prefix"), _OUTCOME
    return call


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recording", description=__doc__)
    parser.add_argument("--json", action="store_true")
    found = run()
    if parser.parse_args().json:
        print(json.dumps(found))
    else:
        print(f"{found['all']:.2f} µs a request, {found['kept a second']:.0f} of {REQUESTS_PER_S} kept a second")
    return 0


if __name__ == "__main__":
    sys.exit(main())
