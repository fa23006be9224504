"""The demo's fleet and load: sizes, ports and command lines, for whoever starts the processes.

Sizing. 26 sessions of about 5,700 tokens (90,000 in the trace ÷ 16) fill 9,300 blocks of 16 tokens; four workers of
2,800 blocks hold 11,200. So the pool holds the active sessions about once, as fleets of real GPUs do, and a router that
scatters a session over all workers would need four times the memory. Think times of at most 60 s ÷ 8 give about eight
requests a second. A long prompt of the trace takes a quarter of a worker's blocks, so that three at once bring it near
its high watermark; workers queue now and then and evict all the time.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from simulator.engine import Engine, EngineLimits
from simulator.placement import Place, PlacementRun, round_robin, session_affine
from simulator.replay import load_weka
from simulator.script import SessionScript


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    name: str
    url: str
    argv: list[str]
    events_endpoint: str
    replay_endpoint: str
    dcgm_url: str


@dataclass(frozen=True, slots=True)
class Profile:
    workers: int
    first_port: int
    model: str
    blocks: int
    block_size_tokens: int
    max_num_seqs: int
    max_model_len: int
    stream_interval_tokens: int
    """Fewer, larger chunks: each costs the demo's two cores about 0.2 ms in three processes."""
    sessions: int
    mixed_sessions: int
    """Beside conversations, which take their share of every cache."""
    speed: float
    conversation_speed: float
    """The trace itself brings 3.4 requests a second; at half speed they leave the sessions their caches."""
    probe_share: float


DEMO = Profile(
    workers=4,
    first_port=9001,
    model="sim-llama",
    blocks=2_800,
    block_size_tokens=16,
    max_num_seqs=16,
    max_model_len=16_384,
    stream_interval_tokens=8,
    sessions=26,
    mixed_sessions=20,
    speed=8.0,
    conversation_speed=0.5,
    probe_share=0.01,
)


def demo_workers(profile: Profile = DEMO, *, first_port: int | None = None) -> list[WorkerSpec]:
    """One process each, on consecutive ports; KV events at port + 1000, replay at port + 2000."""
    first = profile.first_port if first_port is None else first_port
    return [_worker(profile, name=f"w{index + 1}", port=first + index) for index in range(profile.workers)]


def demo_traffic_argv(
    keys_file: Path,
    router_url: str,
    trace: str = "mixed",
    duration_s: float | None = None,
    report: Path | None = None,
    *,
    profile: Profile = DEMO,
    probe_isolation: bool = True,
    seed: int = 1,
) -> list[str]:
    """The traffic player's command line. `duration_s` None = until it is stopped."""
    sessions = profile.mixed_sessions if trace == "mixed" else profile.sessions
    argv = [sys.executable, "-m", "simulator", "traffic", "--url", router_url, "--keys", str(keys_file)]
    argv += ["--trace", trace, "--sessions", str(sessions), "--seed", str(seed), "--speed", str(profile.speed)]
    argv += ["--conversation-speed", str(profile.conversation_speed)]
    if probe_isolation:
        argv += ["--probe-isolation", str(profile.probe_share)]
    if duration_s is not None:
        argv += ["--duration", str(duration_s)]
    if report is not None:
        argv += ["--report", str(report)]
    return argv


def demo_engines(profile: Profile = DEMO) -> list[Engine]:
    """The demo's workers without their servers."""
    limits = EngineLimits(
        blocks=profile.blocks,
        block_size_tokens=profile.block_size_tokens,
        max_num_seqs=profile.max_num_seqs,
        max_model_len=profile.max_model_len,
    )
    return [Engine(limits) for _ in range(profile.workers)]


def compare_placements(*, duration_s: float, seed: int, profile: Profile = DEMO) -> dict[str, dict[str, object]]:
    """The WEKA replay under both placements, on a virtual clock; the first sixth is warm-up and not counted."""
    trace = load_weka()
    places: dict[str, Place] = {
        "session_affine": session_affine(profile.workers),
        "round_robin": round_robin(profile.workers),
    }
    results = {}
    for name, place in places.items():
        script = SessionScript(trace, seed=seed)
        run = PlacementRun(
            demo_engines(profile), place, script, speed=profile.speed, seed=seed, warm_up_s=duration_s / 6
        )
        results[name] = run.run(sessions=profile.sessions, duration_s=duration_s).summary()
    return results


def _worker(profile: Profile, *, name: str, port: int) -> WorkerSpec:
    argv = [sys.executable, "-m", "simulator", "worker", "--port", str(port), "--name", name]
    argv += ["--model", profile.model, "--blocks", str(profile.blocks), "--block-size", str(profile.block_size_tokens)]
    argv += ["--max-num-seqs", str(profile.max_num_seqs), "--max-model-len", str(profile.max_model_len)]
    argv += ["--stream-interval", str(profile.stream_interval_tokens)]
    return WorkerSpec(
        name=name,
        url=f"http://127.0.0.1:{port}",
        argv=argv,
        events_endpoint=f"tcp://127.0.0.1:{port + 1_000}",
        replay_endpoint=f"tcp://127.0.0.1:{port + 2_000}",
        dcgm_url=f"http://127.0.0.1:{port}/dcgm/metrics",
    )
