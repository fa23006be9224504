"""How a request was routed is told to keys with the scope `explain`, and to nobody else (S6)."""

from __future__ import annotations

import msgspec
import pytest

from router.contract.snapshot import PolicySnapshot
from tests.router.conftest import ALICE_ID, CHARLIE_KEY, StartRouter, chat, snapshot_for
from tests.router.scripted_worker import DONE, ScriptedWorker, answer_json, event, stream

HEADER = "x-tidemark-decision"


def _explaining(worker: ScriptedWorker) -> PolicySnapshot:
    snapshot = snapshot_for([worker.url])
    key = msgspec.structs.replace(snapshot.keys[ALICE_ID], scopes=("inference", "explain"))
    return msgspec.structs.replace(snapshot, keys={**snapshot.keys, ALICE_ID: key})


@pytest.mark.parametrize("streams", [True, False])
async def test_it_tells_worker_reason_and_terms(
    start_router: StartRouter, worker: ScriptedWorker, streams: bool
) -> None:
    router = await start_router(_explaining(worker))
    if streams:
        worker.script = stream(event("0"), DONE)
    answer = await router.post(chat("word " * 500, stream=streams))
    told = dict(part.split("=") for part in answer.headers[HEADER].split("; "))
    assert (told["worker"], told["retries"], told["spill"]) == ("p/w1", "0", "none")
    assert told["reason"] and int(told["prompt_tokens"]) > 100
    terms = {name: float(value) for name, value in told.items() if name.endswith("_ms")}
    assert {"saved_ms", "queue_ms", "net_ms", "ttft_ms"} <= set(terms)


async def test_it_tells_others_nothing(start_router: StartRouter, worker: ScriptedWorker) -> None:
    router = await start_router(_explaining(worker))
    for answer in (await router.post(chat(), key=CHARLIE_KEY), await router.post(chat(), key="tm_none")):
        assert HEADER not in answer.headers
        assert "p/w1" not in str(answer.headers) + answer.text


async def test_it_hides_a_workers_own_header_of_that_name(start_router: StartRouter, worker: ScriptedWorker) -> None:
    router = await start_router(_explaining(worker))

    async def forged(asked: object, writer: object) -> None:
        body = b"{}"
        writer.write(  # type: ignore[attr-defined]
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-tidemark-decision: worker=forged\r\n"
            b"content-length: 2\r\n\r\n" + body
        )

    worker.script = forged
    assert HEADER not in (await router.post(chat(), key=CHARLIE_KEY)).headers
    assert (await router.post(chat())).headers.get_list(HEADER)[0].startswith("worker=p/w1")
    worker.script = answer_json({"error": {"message": "no"}}, status=400)
    assert (await router.post(chat())).headers[HEADER].startswith("worker=p/w1")
