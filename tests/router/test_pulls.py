"""A worker that lacks a prompt pulls its KV from another one; whatever goes wrong, the client gets its answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from router.contract.snapshot import PolicySnapshot, PoolPolicy
from router.core.ejection import Ejection
from router.core.rates import PrefillRate
from router.core.retry_budget import RetryBudget
from router.http import pulling
from tests.exact.conftest import model_folder  # noqa: F401 - fixture
from tests.router.conftest import ALICE_SALT, CHARLIE_KEY, MODEL, RunningRouter, StartRouter, chat, snapshot_for
from tests.router.exact_worker import BLOCK_SIZE, ExactWorker
from tests.router.scripted_worker import Asked, Script, answer_json, hang, raw
from tests.router.test_exact_mode import exact_workers, text, until

TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}
PREFILL_TOKENS_PER_S = 2000.0
"""So slow that a second request is worth it for a short prompt."""
NIXL = {
    "transfer": "nixl", "kv_bytes_per_token": 1024, "transfer_gib_per_s": 20.0, "transfer_setup_ms": 1.0,
    "prefill_tokens_per_s": PREFILL_TOKENS_PER_S,
}  # fmt: skip
WORDS = text(1200, seed=5)
CROWD = 60


class Pair:
    """A router before two workers that pull from each other. What the first holds, the second is chosen to answer."""

    def __init__(self, router: RunningRouter, first: ExactWorker, second: ExactWorker) -> None:
        self.router, self.first, self.second = router, first, second

    async def fill_first(self, *bodies: dict[str, Any]) -> None:
        """The bodies' prompts are on the first worker alone, which then is crowded."""
        self.crowd("p/w2", CROWD)
        for body in bodies:
            answer = await self.router.post(body, path=path_of(body))
            assert answer.status_code == 200, answer.text
        assert len(self.first.bodies) == len(bodies) and not self.second.bodies
        await self.told()
        self.crowd("p/w2", -CROWD)
        self.crowd("p/w1", CROWD)
        self.forgive()

    async def told(self) -> None:
        """The router knows all that the workers hold."""
        index = self.router.runtime.exact._index
        for worker, made in (("p/w1", self.first), ("p/w2", self.second)):
            await until(lambda w=worker, m=made: index.resident(w).device == len(m._cache), "its events have come")

    def crowd(self, worker: str, requests: int) -> None:
        """Answers under way there, as of other clients."""
        known = self.router.runtime.table._fleet.workers[worker]
        known.load.outstanding += requests
        known.load.decoding += requests
        known.burden = None

    async def explained(self, answer: Any) -> dict[str, Any]:
        return (await self.router.admin(f"/explain?request_id={answer.headers['x-request-id']}")).json()

    async def counts(self) -> tuple[float, float]:
        """Pulls that went well and that fell back."""
        self.router.runtime.telemetry.close_second(0.0)
        page = (await self.router.admin("/metrics")).text
        found = [line.split() for line in page.splitlines() if line.startswith("tidemark_router_pulls_total")]
        by_result = {line[0]: float(line[1]) for line in found}
        return tuple(by_result[f'tidemark_router_pulls_total{{result="{name}"}}'] for name in ("ok", "fell_back"))

    def nothing_is_held(self) -> None:
        loads = [worker.load for worker in self.router.runtime.table._fleet.workers.values()]
        assert [(load.outstanding % CROWD, load.pending_tokens) for load in loads] == [(0, 0)] * 2
        assert self.router.runtime.table._fleet.pools["p"].outstanding == 0

    def source_answers(self, script: Script) -> None:
        """What the first worker does when it is asked for an offer."""
        self._answers(self.first, script)

    def chosen_answers(self, script: Script) -> None:
        """What the second worker does when it is given an offer."""
        self._answers(self.second, script)

    def _answers(self, worker: ExactWorker, script: Script) -> None:
        async def scripted(asked: Asked, writer: asyncio.StreamWriter) -> None:
            await (script if asked.body and "kv_transfer_params" in asked.json else worker._serve)(asked, writer)

        worker.http.script = scripted

    def forgive(self) -> None:
        """No failure so far counts any more, and nobody has learnt how fast the tests' workers are."""
        fleet = self.router.runtime.table._fleet
        fleet.pools["p"].pulls, fleet.pools["p"].rate = Ejection(), PrefillRate(PREFILL_TOKENS_PER_S)
        for worker in fleet.workers.values():
            worker.health, worker.rate, worker.burden = Ejection(), PrefillRate(PREFILL_TOKENS_PER_S), None


@pytest_asyncio.fixture
async def start_pair(start_router: StartRouter, model_folder: Path) -> AsyncIterator[Callable[..., Any]]:  # noqa: F811
    made: list[ExactWorker] = []

    async def start(*, pool: dict[str, Any] | None = None, **settings: Any) -> Pair:
        workers = [await ExactWorker(model_folder).start() for _ in range(2)]
        made.extend(workers)
        for worker in workers:
            worker.others = {each.http.url: each for each in workers}
        policy = nixl_snapshot(workers, model_folder.name, NIXL | (pool or {}))
        router = await start_router(policy, router_tokenizer_dir=model_folder.parent, **settings)
        await until(lambda: exact_workers(router) == ["p/w1", "p/w2"], "both workers are exact")
        return Pair(router, *workers)

    yield start
    for worker in made:
        await worker.stop()


def nixl_snapshot(workers: list[ExactWorker], tokenizer: str, pool: dict[str, Any]) -> PolicySnapshot:
    policy = PoolPolicy(models=(MODEL,), block_size=BLOCK_SIZE, tokenizer=tokenizer, **pool)
    entries = {f"p/w{number}": worker.entry() for number, worker in enumerate(workers, 1)}
    return msgspec.structs.replace(snapshot_for([]), pools={"p": policy}, workers=entries)


def path_of(body: dict[str, Any]) -> str:
    if "prompt" in body:
        return "/v1/completions"
    if "input" in body:
        return "/v1/responses"
    return "/v1/messages" if body.get("system") else "/v1/chat/completions"


def prompts(count: int) -> list[dict[str, Any]]:
    """Different from their first words on."""
    return [chat(f"{number} {WORDS}", max_tokens=7) for number in range(count)]


REQUESTS = {
    "plain": chat(f"plain {WORDS}", max_tokens=7),
    "stream": chat(f"stream {WORDS}", max_tokens=7, stream=True),
    "fields": chat(
        [{"type": "text", "text": f"fields {WORDS}"}], max_completion_tokens=7, min_tokens=3, n=1, logprobs=True,
        response_format={"type": "text"}, stream=True,
    ),
    "text": {"model": MODEL, "prompt": f"text {WORDS}", "max_tokens": 7},
    "messages": {
        "model": MODEL, "max_tokens": 7, "system": f"messages {WORDS}", "messages": [{"role": "user", "content": "a"}],
    },
    "responses": {"model": MODEL, "max_output_tokens": 7, "input": f"responses {WORDS}"},
}  # fmt: skip


async def test_the_chosen_worker_pulls_what_another_one_holds(start_pair: Any) -> None:
    pair = await start_pair()
    await pair.fill_first(*REQUESTS.values())
    for number, (name, body) in enumerate(REQUESTS.items(), 1):
        answer = await pair.router.post(body, path=path_of(body))
        assert answer.status_code == 200, answer.text
        page = await pair.explained(answer)
        assert (page["worker"], page["pulls_from"], page["pull"]) == ("p/w2", "p/w1", "ok"), name
        source, chosen = pair.first.bodies[-1], pair.second.bodies[-1]
        assert source["kv_transfer_params"] == {"do_remote_decode": True, "do_remote_prefill": False}
        assert source["stream"] is False and {"n", "min_tokens", "logprobs", "response_format"}.isdisjoint(source)
        assert {value for field, value in source.items() if field.startswith("max_")} == {1}
        assert source["cache_salt"] == chosen["cache_salt"] == ALICE_SALT
        assert chosen["kv_transfer_params"]["remote_engine_id"] == pair.first.http.url
        assert {key: chosen[key] for key in body} == body, "the request itself goes on as it was sent"
        assert pair.second.computed[-1] == 1 and pair.first.computed[-1] <= BLOCK_SIZE, name
        assert page["predicted_hit_tokens"] == pair.second.cached[-1] == pair.first.cached[-1] > 600
        assert (page["outcome"], page["status"]) == ("ok", 200)
        assert await pair.counts() == (number, 0)
        pair.nothing_is_held()


async def test_what_was_pulled_is_hit_from_then_on(start_pair: Any) -> None:
    pair, body = await start_pair(), chat(WORDS, max_tokens=7)
    await pair.fill_first(body)
    for _ in range(2):
        answer = await pair.router.post(body)
        await pair.told()
    page = await pair.explained(answer)
    assert (page["worker"], page["pulls_from"], page["pull"]) == ("p/w2", None, "")
    assert len(pair.first.bodies) == 2 and pair.second.cached[1] == page["predicted_hit_tokens"] > 600


async def test_another_tenants_kv_is_never_asked_for(start_pair: Any) -> None:
    pair, body = await start_pair(), chat(WORDS, max_tokens=7)
    await pair.fill_first(body)
    answer = await pair.router.post(body, key=CHARLIE_KEY)
    page = await pair.explained(answer)
    assert (page["worker"], page["pulls_from"]) == ("p/w2", None)
    assert len(pair.first.bodies) == 1 and pair.second.cached == [0]


async def test_a_clients_own_parameters_go_nowhere(start_pair: Any) -> None:
    pair, body = await start_pair(), chat(WORDS, max_tokens=7)
    await pair.fill_first(body)
    stolen = {"do_remote_prefill": True, "remote_engine_id": "theirs", "remote_request_id": "theirs"}
    answer = await pair.router.post(body | {"kv_transfer_params": stolen})
    assert answer.status_code == 200
    sent = [each["kv_transfer_params"] for each in (*pair.first.bodies[1:], *pair.second.bodies)]
    assert [each.get("remote_engine_id") for each in sent] == [None, pair.first.http.url]


async def test_what_cannot_be_asked_in_two_requests_is_computed(start_pair: Any) -> None:
    pair = await start_pair()
    bodies = [
        chat(f"two answers {WORDS}", n=2),
        chat(f"a forced call {WORDS}", tool_choice="required", tools=[TOOL]),
        {"model": MODEL, "input": f"begins at once {WORDS}", "stream": True},
    ]
    await pair.fill_first(*(body | {"stream": False} for body in bodies))
    for body in bodies:
        await pair.router.post(body, path=path_of(body))
        assert pair.second.computed[-1] > 600
    assert all("kv_transfer_params" not in each for each in (*pair.first.bodies, *pair.second.bodies))


async def test_without_a_connector_nothing_is_pulled(start_pair: Any) -> None:
    pair, body = await start_pair(pool={"transfer": ""}), chat(WORDS, max_tokens=7)
    await pair.fill_first(body)
    await pair.router.post(body)
    assert len(pair.first.bodies) == 1 and pair.second.computed[0] > 600


UNKNOWN_ENGINE = {
    "do_remote_prefill": True, "remote_block_ids": [[1]], "remote_engine_id": "nobody", "remote_request_id": "r",
    "remote_host": "127.0.0.1", "remote_port": 1,
}  # fmt: skip
SOURCES = {
    "500": answer_json({"error": "x"}, status=500),
    "429": answer_json({"error": "x"}, status=429),
    "400": answer_json({"error": "x"}, status=400),
    "no parameters": answer_json({"choices": []}),
    "null": answer_json({"choices": [], "kv_transfer_params": None}),
    "no such parameters": answer_json({"kv_transfer_params": {"do_remote_prefill": True, "remote_host": 5}}),
    "unknown engine": answer_json({"kv_transfer_params": UNKNOWN_ENGINE}),
    "HTML": answer_json(b"<html>", content_type="text/html"),
    "too long": raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9999999\r\n\r\n{"),
    "chunked": raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
    "closes": raw(b""),
    "dies inside": raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"),
    "garbage": raw(b"\x00\xff nonsense\r\n\r\n"),
    "hangs": hang,
}


async def test_a_source_that_fails_costs_the_client_nothing(start_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "PATIENCE_S", 0.1)
    pair, bodies = await start_pair(), prompts(len(SOURCES))
    await pair.fill_first(*bodies)
    for number, (how, body) in enumerate(zip(SOURCES, bodies, strict=True), 1):
        pair.source_answers(SOURCES[how])
        await _falls_back(pair, body | {"stream": number % 2 == 0}, how)
        assert await pair.counts() == (0, number)
        pair.forgive()
        pair.router.runtime.service._retry_budget = RetryBudget(0.2)


async def test_a_transfer_that_fails_costs_the_client_nothing(start_pair: Any) -> None:
    """The chosen worker answers 500, or with an error for its stream's first event."""
    pair, bodies = await start_pair(), prompts(2)
    await pair.fill_first(*bodies)
    pair.first.drops_offers = True
    for stream, body in enumerate(bodies):
        await _falls_back(pair, body | {"stream": bool(stream)}, str(stream))
    assert pair.router.runtime.table._fleet.workers["p/w2"].health.failures == 0, "it is not ill for that"


REFUSALS = {
    "400": answer_json({"error": "x"}, status=400),
    "503": answer_json({"error": "x"}, status=503),
    "closes": raw(b""),
    "dies": raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"),
}


async def test_a_chosen_worker_that_refuses_the_offer_is_asked_plainly(start_pair: Any) -> None:
    pair, bodies = await start_pair(), prompts(len(REFUSALS))
    await pair.fill_first(*bodies)
    for body, (how, script) in zip(bodies, REFUSALS.items(), strict=True):
        pair.chosen_answers(script)
        await _falls_back(pair, body, how)
        pair.forgive()


async def test_a_source_that_died_is_found_out_and_not_asked_again(start_pair: Any) -> None:
    pair, body = await start_pair(), chat(WORDS, max_tokens=7)
    await pair.fill_first(body)
    await pair.first.http.stop()
    await _falls_back(pair, body, "dead")
    assert pair.router.runtime.table._fleet.workers["p/w1"].health.failures == 1


async def _falls_back(pair: Pair, body: dict[str, Any], how: str) -> None:
    answer = await pair.router.post(body)
    assert answer.status_code == 200 and "hello" in answer.text and "error" not in answer.text, how
    page = await pair.explained(answer)
    assert (page["worker"], page["pulls_from"], page["pull"]) == ("p/w2", None, "fell_back"), how
    assert page["predicted_hit_tokens"] == 0 and pair.second.computed[-1] > 600, how
    assert "kv_transfer_params" not in pair.second.bodies[-1], how
    pair.nothing_is_held()


async def test_a_request_that_the_worker_refuses_is_refused_in_its_words(start_pair: Any) -> None:
    pair, body = await start_pair(), chat(WORDS, max_tokens=7)
    await pair.fill_first(body)
    for worker in (pair.first, pair.second):
        worker.http.script = answer_json({"error": {"message": "too long for me"}}, status=400)
    answer = await pair.router.post(body)
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "too long for me")
    assert pair.router.runtime.table._fleet.pools["p"].pulls.failures == 0, "the connector is not to blame"
    pair.nothing_is_held()


async def test_a_client_that_leaves_lets_the_source_go(start_pair: Any) -> None:
    pair, body = await start_pair(), chat(WORDS, max_tokens=7)
    await pair.fill_first(body)
    asked_for = asyncio.Event()

    async def waits(asked: Asked, writer: asyncio.StreamWriter) -> None:
        asked_for.set()
        await hang(asked, writer)

    pair.source_answers(waits)
    pair.first.http.script.watches = True  # type: ignore[attr-defined]
    content = json.dumps(body).encode()
    _, writer = await asyncio.open_connection("127.0.0.1", pair.router.settings.router_port)
    key = pair.router.client().headers["authorization"]
    writer.write(
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: {key}\r\n"
        f"content-length: {len(content)}\r\n\r\n".encode() + content
    )  # fmt: skip
    await asyncio.wait_for(asked_for.wait(), 3)
    writer.transport.abort()
    await asyncio.wait_for(pair.first.http.disconnected.wait(), 3)
    await until(lambda: pair.router.runtime.service.inflight == 0, "the request ends")
    pair.nothing_is_held()
    assert not pair.second.bodies


async def test_a_connector_that_fails_again_and_again_is_left_alone(start_pair: Any) -> None:
    pair, bodies = await start_pair(), prompts(8)
    await pair.fill_first(*bodies)
    pair.first.withholds = True
    for body in bodies:
        assert (await pair.router.post(body)).status_code == 200
    assert len(pair.first.bodies) == len(bodies) + 5
    assert await pair.counts() == (0, 5)
    pair.nothing_is_held()


async def test_without_a_budget_for_retries_nothing_is_pulled(start_pair: Any) -> None:
    pair, body = await start_pair(router_retry_budget_share=0.0), chat(WORDS, max_tokens=7)
    await pair.fill_first(body)
    await pair.router.post(body)
    assert len(pair.first.bodies) == 1
