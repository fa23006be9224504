"""The real process: it starts from disk, ends in order, names what is wrong, and logs nothing of what clients send."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import httpx

from router.contract.snapshot import encode_document
from tests.router.conftest import ALICE_KEY, ALICE_SALT, FLEET_HEX, chat, free_port, signed, snapshot_for
from tests.router.scripted_worker import DONE, ScriptedWorker, answer_json, event, hang, raw, stream

ROOT = Path(__file__).parents[2]
MARKER = "zebra-marker-7731"


async def _start(state_dir: Path, port: int, admin_port: int, **extra: str) -> asyncio.subprocess.Process:
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TIDEMARK_")},
        "TIDEMARK_FLEET_KEY": FLEET_HEX,
        "TIDEMARK_ROUTER_PORT": str(port),
        "TIDEMARK_ROUTER_ADMIN_PORT": str(admin_port),
        "TIDEMARK_ROUTER_STATE_DIR": str(state_dir),
        **extra,
    }
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "router",
        cwd=ROOT,
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def _until_ready(admin_port: int) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        for _ in range(200):
            try:
                if (await client.get(f"http://127.0.0.1:{admin_port}/readyz")).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            await asyncio.sleep(0.05)
    raise AssertionError("the router does not become ready")


async def test_it_serves_logs_no_prompt_and_exits_0_on_sigterm(tmp_path: Path, worker: ScriptedWorker) -> None:
    (tmp_path / "snapshot.json").write_bytes(encode_document(signed(snapshot_for([worker.url]))))
    port, admin_port = free_port(), free_port()
    limits = {"TIDEMARK_LOG_LEVEL": "DEBUG", "TIDEMARK_ROUTER_ANSWER_TIMEOUT_S": "0.3"}
    process = await _start(tmp_path, port, admin_port, **limits)
    await _until_ready(admin_port)
    marked = chat(MARKER, user=MARKER, metadata={MARKER: MARKER})
    bad = [b"{" + MARKER.encode(), {**marked, "model": MARKER}, {**marked, "n": MARKER}, {**marked, MARKER: 1}]
    scripts = [answer_json(), answer_json(MARKER.encode(), status=500), raw(MARKER.encode()), hang]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=5) as client:
        headers = {"authorization": f"Bearer {ALICE_KEY}", "x-session-id": MARKER, "x-tidemark-template": MARKER}
        for body in bad:
            content = {"content": body} if isinstance(body, bytes) else {"json": body}
            await client.post("/v1/chat/completions", headers=headers, **content)
        for script in scripts:
            worker.script = script
            await client.post("/v1/chat/completions", headers=headers, json=marked)
        await client.get(f"/{MARKER}", headers={MARKER: MARKER})
        worker.script = stream(event("a"), DONE)
        answer = await client.post("/v1/chat/completions", headers=headers, json={**marked, "stream": True})
        assert answer.content == event("a") + DONE
        state = (await client.get(f"http://127.0.0.1:{admin_port}/state")).text
        metrics = (await client.get(f"http://127.0.0.1:{admin_port}/metrics")).text
    process.send_signal(signal.SIGTERM)
    out, err = await asyncio.wait_for(process.communicate(), 10)
    assert process.returncode == 0, err
    for text in (out.decode(), err.decode(), state, metrics):
        for secret in (MARKER, ALICE_KEY, ALICE_SALT, FLEET_HEX):
            assert secret not in text
    assert '"event": "router_stops"' in err.decode()


async def test_it_names_the_variable_when_a_port_is_taken(tmp_path: Path) -> None:
    taken = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    for ports, name in (
        ((port, free_port()), "TIDEMARK_ROUTER_PORT"),
        ((free_port(), port), "TIDEMARK_ROUTER_ADMIN_PORT"),
    ):
        process = await _start(tmp_path, *ports)
        _, err = await asyncio.wait_for(process.communicate(), 10)
        assert process.returncode == 2
        last = err.decode().strip().splitlines()[-1]
        assert name in last and "Traceback" not in err.decode()
    taken.close()


async def test_it_names_a_wrong_setting(tmp_path: Path) -> None:
    for extra, name in (
        ({"TIDEMARK_FLEET_KEY": "abc"}, "TIDEMARK_FLEET_KEY"),
        ({"TIDEMARK_FLEET_KEY": "", "TIDEMARK_FLEET_KEY_FILE": "/nowhere/key"}, "TIDEMARK_FLEET_KEY_FILE"),
        ({"TIDEMARK_ROUTER_DRAIN_S": "soon"}, "TIDEMARK_ROUTER_DRAIN_S"),
    ):
        process = await _start(tmp_path, free_port(), free_port(), **extra)
        _, err = await asyncio.wait_for(process.communicate(), 10)
        assert process.returncode == 2 and name in err.decode() and "Traceback" not in err.decode()
