"""The demo's simulated workers and traffic player as command lines, from the simulator's own profile."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from controlplane.supervisor.config import EVENTS_PORT_OFFSET, REPLAY_PORT_OFFSET

MODEL = "sim-llama"
BLOCK_SIZE = 16
WORKERS = 4


@dataclass(frozen=True)
class DemoWorker:
    name: str
    url: str
    argv: list[str]

    @property
    def port(self) -> int:
        port = urlsplit(self.url).port
        assert port is not None
        return port

    def addresses(self) -> dict[str, str]:
        """Field of `fleet.Worker` → address."""
        return {
            "url": self.url,
            "kv_events_endpoint": f"tcp://127.0.0.1:{self.port + EVENTS_PORT_OFFSET}",
            "kv_replay_endpoint": f"tcp://127.0.0.1:{self.port + REPLAY_PORT_OFFSET}",
            "dcgm_url": f"{self.url}/dcgm/metrics",
        }


def demo_workers(base_port: int) -> list[DemoWorker]:
    from simulator import profiles

    specs = profiles.demo_workers(base_port=base_port)
    return [DemoWorker(spec.name, spec.url, list(spec.argv)) for spec in specs]


def traffic_argv(*, keys_file: Path, router_url: str, trace: str, duration_s: float | None, report: Path) -> list[str]:
    from simulator import profiles

    return list(
        profiles.demo_traffic_argv(
            keys_file=keys_file, router_url=router_url, trace=trace, duration_s=duration_s, report=report
        )
    )
