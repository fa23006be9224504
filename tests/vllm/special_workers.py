"""Workers that are started differently from the two of `make test-vllm`: guarded, without prefix caching, or pulling KV
from each other."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.vllm.connectors import complete, offered, text_of

ROOT = Path(__file__).resolve().parents[2]
LAB = ROOT / "docker" / "lab" / "lab.sh"


HANDSHAKE_WITHIN_S = 120
"""A handshake gives up after 5 s, which a busy machine can take to start a worker's listener."""


@contextlib.contextmanager
def nixl_pair() -> Iterator[tuple[str, str]]:
    """Two workers that pull KV from each other by NIXL, and have done so once. The two of `make test-vllm` are stopped
    meanwhile: four on two cores do not answer each other in time."""
    subprocess.run([LAB, "nixl"], check=True, timeout=300)
    config = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
    flag = "--kv-transfer-config " + json.dumps(config, separators=(",", ":"))
    standing = [number for number in (1, 2) if _runs(number)]
    for number in standing:
        subprocess.run([LAB, "stop", str(number)], check=True, timeout=60)
    try:
        with special_worker(3, flag) as first, special_worker(4, flag) as second:
            _shake_hands(first, second)
            _shake_hands(second, first)
            yield first, second
    finally:
        if standing:
            subprocess.run([LAB, "up", str(max(standing))], check=True, stdout=subprocess.DEVNULL, timeout=400)


def _runs(number: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:1800{number}/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def _shake_hands(source: str, puller: str) -> None:
    """The first pull between two workers fails where the handshake takes too long; a later one finds it done."""
    give_up_at = time.monotonic() + HANDSHAKE_WITHIN_S
    for seed in range(1000, 2000):
        params = offered(source, text_of(seed), salt="handshake")
        try:
            complete(puller, text_of(seed), salt="handshake", kv_transfer_params=params)
            return
        except httpx.HTTPError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(2)


@contextlib.contextmanager
def special_worker(number: int, *flags: str, **environment: str) -> Iterator[str]:
    """The URL of worker `number` of the lab; it is stopped afterwards unless it ran before."""
    pid_file = Path(os.environ.get("VLLM_LAB", Path.home() / ".cache" / "vllm-lab")) / "run" / f"w{number}.pid"
    ran_before = pid_file.exists()
    variables = {**os.environ, **environment, "EXTRA": " ".join(flags)}
    subprocess.run([LAB, "one", str(number)], env=variables, check=True, stdout=subprocess.DEVNULL, timeout=400)
    try:
        yield f"http://127.0.0.1:1800{number}"
    finally:
        if not ran_before:
            subprocess.run([LAB, "stop", str(number)], check=True, timeout=60)
