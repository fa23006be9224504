"""A router as a process of its own: started, killed, started again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import httpx

from tests.router.conftest import FLEET_HEX, free_port

ROOT = Path(__file__).parents[2]
READY_WITHIN_S = 15.0


class RouterProcess:
    def __init__(self, state_dir: Path, *, port: int = 0, admin_port: int = 0, **environment: str) -> None:
        """`environment`: further settings, by their names without the prefix."""
        self.state_dir = state_dir
        self.port = port or free_port()
        self.admin_port = admin_port or free_port()
        self.environment = environment
        self.process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    async def start(self) -> RouterProcess:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TIDEMARK_")}
        settings = {
            "FLEET_KEY": FLEET_HEX,
            "ROUTER_PORT": str(self.port),
            "ROUTER_ADMIN_PORT": str(self.admin_port),
            "ROUTER_STATE_DIR": str(self.state_dir),
            "ROUTER_PROBE_INTERVAL_S": "0",
            "ROUTER_COMPILED": os.environ["TIDEMARK_ROUTER_COMPILED"],
            **self.environment,
        }
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "router",
            cwd=ROOT,
            env=inherited | {f"TIDEMARK_{name}": value for name, value in settings.items()},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        return self

    async def until_ready(self, within_s: float = READY_WITHIN_S) -> float:
        """Seconds that it took."""
        started = time.monotonic()
        async with httpx.AsyncClient(trust_env=False) as client:
            while time.monotonic() - started < within_s:
                try:
                    if (await client.get(f"{self.admin_url}/readyz")).status_code == 200:
                        return time.monotonic() - started
                except httpx.HTTPError:
                    pass
                await asyncio.sleep(0.02)
        raise AssertionError("the router does not become ready")

    def waited_for_cpu_s(self) -> float:
        """How long others kept it from running: on a busy machine no fault of its own."""
        assert self.process is not None
        return int(Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[1]) / 1e9

    async def end(self, number: int = signal.SIGTERM, *, within_s: float = 10.0) -> tuple[int, str, str]:
        """Send the signal; (exit status, standard output, standard error)."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await self.wait(within_s=within_s)

    async def wait(self, *, within_s: float = 10.0) -> tuple[int, str, str]:
        assert self.process is not None
        out, err = await asyncio.wait_for(self.process.communicate(), within_s)
        assert self.process.returncode is not None
        return self.process.returncode, out.decode(), err.decode()
