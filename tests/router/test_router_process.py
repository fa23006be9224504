"""The real process: it starts from disk, ends in order, names what is wrong, and logs nothing of what clients send."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from router.contract.snapshot import encode_document
from tests.router.conftest import ALICE_KEY, ALICE_SALT, FLEET_HEX, chat, free_port, signed, snapshot_for
from tests.router.process import RouterProcess
from tests.router.scripted_worker import DONE, ScriptedWorker, answer_json, event, hang, raw, stream

MARKER = "zebra-marker-7731"


async def test_it_serves_logs_no_prompt_and_exits_0_on_sigterm(tmp_path: Path, worker: ScriptedWorker) -> None:
    (tmp_path / "snapshot.json").write_bytes(encode_document(signed(snapshot_for([worker.url]))))
    router = await RouterProcess(tmp_path, LOG_LEVEL="DEBUG", ROUTER_ANSWER_TIMEOUT_S="0.3").start()
    await router.until_ready()
    marked = chat(MARKER, user=MARKER, metadata={MARKER: MARKER})
    bad = [b"{" + MARKER.encode(), {**marked, "model": MARKER}, {**marked, "n": MARKER}, {**marked, MARKER: 1}]
    scripts = [answer_json(), answer_json(MARKER.encode(), status=500), raw(MARKER.encode()), hang]
    async with httpx.AsyncClient(base_url=router.url, trust_env=False, timeout=5) as client:
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
        state = (await client.get(f"{router.admin_url}/state")).text
        metrics = (await client.get(f"{router.admin_url}/metrics")).text
    status, out, err = await router.end()
    assert status == 0, err
    for text in (out, err, state, metrics):
        for secret in (MARKER, ALICE_KEY, ALICE_SALT, FLEET_HEX):
            assert secret not in text
    assert '"event": "router_stops"' in err


async def test_it_names_the_variable_when_a_port_is_taken(tmp_path: Path) -> None:
    taken = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    for ports, name in (
        ((port, free_port()), "TIDEMARK_ROUTER_PORT"),
        ((free_port(), port), "TIDEMARK_ROUTER_ADMIN_PORT"),
    ):
        router = await RouterProcess(tmp_path, port=ports[0], admin_port=ports[1]).start()
        status, _, err = await router.wait()
        assert status == 2
        assert name in err.strip().splitlines()[-1] and "Traceback" not in err
    taken.close()


async def test_it_names_a_wrong_setting(tmp_path: Path) -> None:
    for extra, name in (
        ({"FLEET_KEY": "abc"}, "TIDEMARK_FLEET_KEY"),
        ({"FLEET_KEY": "", "FLEET_KEY_FILE": "/nowhere/key"}, "TIDEMARK_FLEET_KEY_FILE"),
        ({"ROUTER_DRAIN_S": "soon"}, "TIDEMARK_ROUTER_DRAIN_S"),
    ):
        status, _, err = await (await RouterProcess(tmp_path, **extra).start()).wait()
        assert status == 2 and name in err and "Traceback" not in err
