"""A simulated worker as a process of the test."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx

from tests.services import free_port

BLOCK_SIZE = 16


@contextlib.contextmanager
def worker(*arguments: str, events: bool = True) -> Iterator[str]:
    """Its URL, once it answers."""
    port, events_port, replay_port = free_port(), free_port() if events else 0, free_port()
    command = [
        sys.executable, "-m", "simulator", "worker", "--port", str(port), "--events-port", str(events_port),
        "--replay-port", str(replay_port), "--model", "sim", "--block-size", str(BLOCK_SIZE), "--blocks", "256",
        "--time-scale", "20", *arguments,
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await_health(f"http://127.0.0.1:{port}", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def _await_health(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(200):
        assert process.poll() is None, "the simulated worker ended"
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/health", timeout=1).status_code == 200:
                return
        time.sleep(0.05)
    raise AssertionError("the simulated worker does not answer")


def complete(url: str, prompt: str, *, max_tokens: int = 4) -> dict:
    answer = httpx.post(
        f"{url}/v1/completions", json={"model": "sim", "prompt": prompt, "max_tokens": max_tokens}, timeout=20
    )
    answer.raise_for_status()
    return answer.json()
