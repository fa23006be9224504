"""The demo's profile: affinity is worth at least 30 points of hit-token share on the WEKA replay."""

from __future__ import annotations

from pathlib import Path

from simulator.commands import traffic_config, worker_config
from simulator.profiles import DEMO, compare_placements, demo_traffic_argv, demo_workers
from tests.simulator.test_commands import parsed


def test_it_gains_thirty_points_by_affinity_alone() -> None:
    results = compare_placements(duration_s=60, seed=5)
    affine, scattered = results["session_affine"], results["round_robin"]
    assert isinstance(affine["hit_token_share"], float) and isinstance(scattered["hit_token_share"], float)
    assert affine["hit_token_share"] >= scattered["hit_token_share"] + 0.30
    assert affine["ttft_ms_p50"] < scattered["ttft_ms_p50"] / 3  # type: ignore[operator]


def test_it_queues_evicts_and_fills_up_now_and_then() -> None:
    affine = compare_placements(duration_s=60, seed=6)["session_affine"]
    assert affine["waiting_max"] > 0  # type: ignore[operator]
    assert affine["evictions"] > 0  # type: ignore[operator]
    assert affine["kv_use_max"] > 0.85  # type: ignore[operator]
    assert 0.3 < affine["busy_share"] < 0.95  # type: ignore[operator]


def test_it_writes_command_lines_that_the_commands_accept(tmp_path: Path) -> None:
    specs = demo_workers(first_port=29_500)
    configs = [worker_config(parsed(spec.argv[3:])) for spec in specs]
    assert [config.name for config in configs] == ["w1", "w2", "w3", "w4"]
    assert [spec.url for spec in specs] == [f"http://127.0.0.1:{29_500 + n}" for n in range(4)]
    assert configs[0].limits.blocks == DEMO.blocks
    keys = tmp_path / "keys.json"
    keys.write_text('[{"tenant":"a","namespace":"a/x","key":"k1","model":"m"},'
                    '{"tenant":"b","namespace":"b/x","key":"k2","model":"m"}]')  # fmt: skip
    argv = demo_traffic_argv(keys, "http://127.0.0.1:8080", "mixed", 12.5, tmp_path / "out.json")
    config = traffic_config(parsed(argv[3:]))
    assert (config.trace, config.duration_s, config.sessions) == ("mixed", 12.5, DEMO.mixed_sessions)
    assert config.report == tmp_path / "out.json"
