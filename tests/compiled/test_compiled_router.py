"""The compiled hot modules behave as their sources: the tests of core and edge once more, on native code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from router.contract.snapshot import encode_document
from router.native.build import CannotCompile, build
from tests.router.conftest import ALICE_KEY, chat, signed, snapshot_for, worker  # noqa: F401 - the fixture
from tests.router.process import RouterProcess
from tests.router.scripted_worker import ScriptedWorker, answer_json

ROOT = Path(__file__).parents[2]
BUILD_S_MAX = 900
"""A minute of CPU, on a machine that may be busy."""
GROUPS = {
    "core": ["tests/core"],
    "edge": [
        f"tests/router/test_{name}.py"
        for name in (
            "call_balance", "call_states", "edge_rules", "exact_mode", "hostile_input", "known_head", "openai_client",
            "plain_chat", "pulls", "relay_of_answers", "request_fields", "router_process", "stream_relay",
            "worker_faults",
        )
    ],
    "surface": ["tests/surface"],
}  # fmt: skip

pytestmark = [pytest.mark.compiler, pytest.mark.flow, pytest.mark.timeout(BUILD_S_MAX)]


@pytest.fixture(scope="module")
def compiled() -> Path:
    try:
        return build()
    except CannotCompile as error:
        pytest.fail(str(error))


@pytest.mark.parametrize("group", GROUPS)
def test_the_tests_of_the_sources_pass_on_native_code(compiled: Path, group: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "router.native", "run", "pytest", "-q", "-m", "not interpreted", *GROUPS[group]],
        cwd=ROOT,
        env={**os.environ, "TIDEMARK_ROUTER_COMPILED": "require"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:]


async def test_a_router_says_that_it_serves_compiled(
    compiled: Path,
    tmp_path: Path,
    worker: ScriptedWorker,  # noqa: F811 - the imported fixture
) -> None:
    (tmp_path / "snapshot.json").write_bytes(encode_document(signed(snapshot_for([worker.url]))))
    worker.script = answer_json()
    router = await RouterProcess(tmp_path, ROUTER_COMPILED="require").start()
    await router.until_ready()
    async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
        headers = {"authorization": f"Bearer {ALICE_KEY}"}
        answer = await client.post(f"{router.url}/v1/chat/completions", headers=headers, json=chat())
        ready = (await client.get(f"{router.admin_url}/readyz")).json()
        metrics = (await client.get(f"{router.admin_url}/metrics")).text
    status, _, err = await router.end()
    assert (answer.status_code, ready["code"], status) == (200, "compiled", 0)
    assert "tidemark_router_compiled 1.0" in metrics
    assert '"code": "compiled"' in err


def test_what_is_built_is_not_built_again(compiled: Path) -> None:
    made = compiled.stat().st_mtime_ns
    assert build() == compiled
    assert compiled.stat().st_mtime_ns == made


BEGINS = """
import asyncio
from benchmarks.path import Bench

async def main():
    bench = Bench(1)
    client = bench._free[0]
    client.data_received(bench.requests(1, shared=0, unique=100)[0])
    for name in dir(client.call):
        getattr(client.call, name)

asyncio.run(main())
"""


def test_a_call_begins_with_every_attribute(compiled: Path, tmp_path: Path) -> None:
    """mypyc leaves out a default of the class whose type is a Protocol."""
    (tmp_path / "begins.py").write_text(BEGINS)
    done = subprocess.run(
        [sys.executable, "-m", "router.native", "run", "begins"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
