"""A pool that names a tokenizer is matched by its workers' own blocks, and only while that is proven."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio

from router import explaining
from router.adapters import exact_pool
from router.adapters.tokenizer import ExactTokenizer
from router.contract.snapshot import PolicySnapshot, PoolPolicy
from router.core.exact import silence
from tests.exact.conftest import model_folder  # noqa: F401 - fixture
from tests.router.conftest import CHARLIE_KEY, MODEL, RunningRouter, StartRouter, chat, signed, snapshot_for
from tests.router.exact_worker import BLOCK_SIZE, ExactWorker
from tests.router.scripted_worker import Asked, Script, answer_json

UNTIL_S = 5.0


@pytest_asyncio.fixture
async def exact_worker(model_folder: Path) -> AsyncIterator[ExactWorker]:  # noqa: F811 - the imported fixture
    made = await ExactWorker(model_folder).start()
    yield made
    await made.stop()


@pytest_asyncio.fixture
async def second_worker(model_folder: Path) -> AsyncIterator[ExactWorker]:  # noqa: F811 - the imported fixture
    made = await ExactWorker(model_folder).start()
    yield made
    await made.stop()


@pytest.fixture
def start_exact(start_router: StartRouter, model_folder: Path) -> Callable[..., Any]:  # noqa: F811
    async def start(*workers: ExactWorker, snapshot: PolicySnapshot | None = None, **settings: Any) -> RunningRouter:
        return await start_router(
            snapshot or exact_snapshot(*workers), **{"router_tokenizer_dir": model_folder.parent} | settings
        )

    return start


def exact_snapshot(*workers: ExactWorker, tokenizer: str = "", **fields: Any) -> PolicySnapshot:
    """Every temporary model folder has a name of its own below the folder of the session."""
    pool = PoolPolicy(models=(MODEL,), block_size=BLOCK_SIZE, tokenizer=tokenizer or FOLDER[0])
    entries = {f"p/w{number}": worker.entry(**fields) for number, worker in enumerate(workers, 1)}
    return msgspec.structs.replace(snapshot_for([]), pools={"p": pool}, workers=entries)


FOLDER = [""]


@pytest.fixture(autouse=True)
def folder_name(model_folder: Path) -> None:  # noqa: F811
    FOLDER[0] = model_folder.name


async def until(condition: Callable[[], Any], what: str) -> None:
    for _ in range(int(UNTIL_S / 0.02)):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {UNTIL_S:.0f} s: {what}")


def page(router: RunningRouter) -> dict[str, Any]:
    return router.runtime.exact.state()["pools"]["p"]


def exact_workers(router: RunningRouter) -> list[str]:
    return [worker for worker, each in page(router).get("workers", {}).items() if each["exact"]]


def text(words: int, *, seed: int) -> str:
    draw = random.Random(seed)
    return " ".join(draw.choice(("import", "value", "range", "class", "naïve", "😀")) for _ in range(words))


async def ask(router: RunningRouter, body: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
    """What was decided for the body, as explained afterwards."""
    answer = await router.post(body, **kwargs)
    assert answer.status_code == 200, answer.text
    cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    explained = (await router.admin(f"/explain?request_id={answer.headers['x-request-id']}")).json()
    await asyncio.sleep(0.05)  # its events are on their way
    return explained | {"cached": cached}


async def test_predicted_hits_are_the_delivered_ones(start_exact: Any, exact_worker: ExactWorker) -> None:
    router = await start_exact(exact_worker)
    await until(lambda: exact_workers(router) == ["p/w1"], "the worker is exact")
    talk, prompt = chat(text(200, seed=1)), {"model": MODEL, "prompt": text(300, seed=2)}
    bodies = [
        (talk, "/v1/chat/completions"), (talk, "/v1/chat/completions"), (prompt, "/v1/completions"),
        (prompt | {"prompt": prompt["prompt"] + " and more"}, "/v1/completions"),
        (chat(talk["messages"][0]["content"] + text(40, seed=3), n=1), "/v1/chat/completions"),
        (prompt | {"prompt": list(range(300))}, "/v1/completions"),
        (prompt | {"prompt": list(range(320))}, "/v1/completions"),
    ]  # fmt: skip
    seen = [await ask(router, body, path=path) for body, path in bodies]
    assert all(each["exact"] for each in seen)
    assert [each["predicted_hit_tokens"] for each in seen] == [each["cached"] for each in seen] == exact_worker.cached
    assert [each["cached"] > 0 for each in seen] == [False, True, False, True, True, False, True]
    foreign = await ask(router, talk, key=CHARLIE_KEY)
    assert (foreign["exact"], foreign["predicted_hit_tokens"], foreign["cached"]) == (True, 0, 0)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/v1/messages",
            {"max_tokens": 5, "system": text(90, seed=20), "messages": [{"role": "user", "content": "a"}]},
        ),
        ("/v1/responses", {"instructions": text(90, seed=21), "input": [{"role": "user", "content": "a"}]}),
    ],
)
async def test_other_chats_are_exact_too(
    start_exact: Any, exact_worker: ExactWorker, path: str, body: dict[str, Any]
) -> None:
    router = await start_exact(exact_worker)
    await until(lambda: exact_workers(router) == ["p/w1"], "the worker is exact")
    seen = []
    for _ in range(2):
        answer = await router.post({"model": MODEL} | body, path=path)
        assert answer.status_code == 200, answer.text
        seen.append((await router.admin(f"/explain?request_id={answer.headers['x-request-id']}")).json())
        await asyncio.sleep(0.05)  # its events are on their way
    assert [each["exact"] for each in seen] == [True, True]
    assert [each["predicted_hit_tokens"] for each in seen] == exact_worker.cached and exact_worker.cached[1] > 80
    would_be = await would_be_explained(router, {"model": MODEL} | body, path=path)
    assert would_be["exact"] and would_be["predicted_hit_tokens"] == exact_worker.cached[1]


async def test_blocks_of_an_adapter_are_hit_by_its_own_requests_alone_c23(
    start_exact: Any, exact_worker: ExactWorker
) -> None:
    exact_worker.adapters = {"sql": "/adapters/sql", "law": "/adapters/law"}
    snapshot = exact_snapshot(exact_worker)
    pool = PoolPolicy(models=(MODEL, "sql", "law"), block_size=BLOCK_SIZE, tokenizer=FOLDER[0])
    router = await start_exact(snapshot=msgspec.structs.replace(snapshot, pools={"p": pool}))
    await until(lambda: exact_workers(router) == ["p/w1"], "the worker is exact")
    prompt = text(200, seed=23)
    seen = [
        await ask(router, {"model": model, "prompt": prompt}, path="/v1/completions")
        for model in ("sql", "law", MODEL, "sql", "law", MODEL)
    ]
    assert [each["exact"] for each in seen] == [True] * 6
    assert [each["predicted_hit_tokens"] for each in seen] == [each["cached"] for each in seen]
    assert [each["cached"] > 0 for each in seen] == [False, False, False, True, True, True]


async def test_an_adapter_that_workers_keep_elsewhere_is_matched_by_text(
    start_exact: Any, exact_worker: ExactWorker, second_worker: ExactWorker
) -> None:
    exact_worker.adapters, second_worker.adapters = {"sql": "/adapters/v1"}, {"sql": "/adapters/v2"}
    snapshot = exact_snapshot(exact_worker, second_worker)
    pool = PoolPolicy(models=(MODEL, "sql"), block_size=BLOCK_SIZE, tokenizer=FOLDER[0])
    router = await start_exact(snapshot=msgspec.structs.replace(snapshot, pools={"p": pool}))
    await until(lambda: len(exact_workers(router)) == 2, "both workers are exact")
    prompt = {"prompt": text(200, seed=24)}
    assert not (await ask(router, {"model": "sql"} | prompt, path="/v1/completions"))["exact"]
    assert (await ask(router, {"model": MODEL} | prompt, path="/v1/completions"))["exact"]


async def test_a_long_unseen_prompt_is_explained_by_its_tokens(start_exact: Any, exact_worker: ExactWorker) -> None:
    router = await start_exact(exact_worker)
    await until(lambda: exact_workers(router) == ["p/w1"], "the worker is exact")
    body = {"model": MODEL, "prompt": text(3000, seed=22)}
    would_be = await would_be_explained(router, body, path="/v1/completions")
    assert would_be["exact"] and would_be["predicted_hit_tokens"] == 0
    assert would_be["predicted_prompt_tokens"] > 3000


async def would_be_explained(router: RunningRouter, body: dict[str, Any], *, path: str) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=router.admin_url, timeout=5, trust_env=False) as client:
        answer = await client.post(f"/explain?path={path}&namespace=acme/support", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_the_pool_says_so_on_the_admin_port(start_exact: Any, exact_worker: ExactWorker) -> None:
    router = await start_exact(exact_worker)
    await until(lambda: exact_workers(router) == ["p/w1"], "the worker is exact")
    state = (await router.admin("/state")).json()["exact"]["pools"]["p"]
    assert (state["status"], state["workers"]["p/w1"]["parity"]) == ("exact", "equal")
    assert state["workers"]["p/w1"]["events"] == "live"
    assert 'tidemark_pool_exact{pool="p"} 1.0' in (await router.admin("/metrics")).text


async def test_the_request_goes_on_as_it_was_sent(start_exact: Any, exact_worker: ExactWorker) -> None:
    router = await start_exact(exact_worker)
    await until(lambda: exact_workers(router) == ["p/w1"], "the worker is exact")
    body = chat(text(50, seed=4), temperature=0.5)
    await ask(router, body)
    sent = exact_worker.http.asked[-1].json
    assert sent.pop("cache_salt") and sent == body


async def test_a_worker_that_tokenises_differently_makes_the_pool_approximate(
    start_exact: Any, exact_worker: ExactWorker, second_worker: ExactWorker
) -> None:
    second_worker.shift = 1
    router = await start_exact(exact_worker, second_worker)
    await until(lambda: page(router)["status"].startswith("approximate"), "the difference is found")
    assert page(router)["status"] == "approximate: a worker tokenises differently"
    assert page(router)["workers"]["p/w2"]["parity"].startswith("different")
    told = router.runtime.exact.told()["p"]
    assert told.status == page(router)["status"] and told.different.keys() == {"p/w2"} and told.different["p/w2"]
    assert told.files_version == page(router)["files_version"] != ""
    assert not (await ask(router, chat(text(200, seed=1))))["exact"]
    assert 'tidemark_pool_exact{pool="p"} 0.0' in (await router.admin("/metrics")).text


async def test_a_worker_that_says_nothing_is_asked_again(
    start_exact: Any, exact_worker: ExactWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact_pool, "UNPROVEN_S", 0.1)
    exact_worker.tokenize_status = 503
    router = await start_exact(exact_worker)
    await until(lambda: "unknown" in page(router)["workers"]["p/w1"]["parity"], "the worker was asked")
    assert page(router)["status"].startswith("approximate")
    assert not (await ask(router, chat(text(200, seed=1))))["exact"]
    exact_worker.tokenize_status = 200
    await until(lambda: exact_workers(router) == ["p/w1"], "it is asked again and exact")


async def test_a_worker_that_cannot_tell_keeps_its_approximate_match(
    start_exact: Any, exact_worker: ExactWorker, second_worker: ExactWorker
) -> None:
    router = await start_exact(exact_worker)
    snapshot = exact_snapshot(exact_worker, second_worker)
    mute = {"p/w2": second_worker.entry(kv_events="", kv_replay="")}
    snapshot = msgspec.structs.replace(snapshot, workers=snapshot.workers | mute)
    router.runtime._apply_snapshot(signed(snapshot, version=2), snapshot)
    await until(lambda: exact_workers(router) == ["p/w1"], "one worker is exact")
    seen = [await ask(router, chat(text(300, seed=seed))) for seed in (1, 2, 3, 4, 5, 6) for _ in (1, 2)]
    first, again = seen[::2], seen[1::2]
    assert all(each["exact"] for each in seen) and {each["worker"] for each in seen} == {"p/w1", "p/w2"}
    assert [each["worker"] for each in first] == [each["worker"] for each in again]
    assert all(each["predicted_hit_tokens"] > 200 for each in again)
    assert all(each["predicted_hit_tokens"] == each["cached"] for each in again if each["worker"] == "p/w1")


async def test_equal_prompts_that_come_together_go_together_before_anybody_tells_of_them(
    start_exact: Any, exact_worker: ExactWorker, second_worker: ExactWorker
) -> None:
    """The workers read nothing until all four are with them: what was sent where is all that the choice can go by."""
    workers, gate = (exact_worker, second_worker), asyncio.Event()
    router = await start_exact(*workers)
    await until(lambda: len(exact_workers(router)) == 2, "both workers are exact")
    for each in workers:
        each.http.asked.clear()
        each.http.script = behind(gate, each.http.script)
    body = chat(text(900, seed=31))
    asking = [asyncio.create_task(ask(router, body)) for _ in range(4)]
    await until(lambda: sum(len(each.http.asked) for each in workers) == 4, "all are with a worker")
    gate.set()
    seen = await asyncio.gather(*asking)
    assert len({each["worker"] for each in seen}) == 1
    assert sorted(each["expected_tokens"] > 0 for each in seen) == [False, True, True, True]
    assert [each["predicted_hit_tokens"] for each in seen] == [each["cached"] for each in seen]
    again = await ask(router, body)
    assert (again["worker"], again["expected_tokens"]) == (seen[0]["worker"], 0), "its events have come"


def behind(gate: asyncio.Event, script: Script) -> Script:
    async def held(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        await script(asked, writer)

    return held


async def test_a_restarted_worker_is_forgotten_at_once(start_exact: Any, exact_worker: ExactWorker) -> None:
    router = await start_exact(exact_worker)
    await until(lambda: exact_workers(router) == ["p/w1"], "the worker is exact")
    body = chat(text(200, seed=1))
    await ask(router, body)
    assert (await ask(router, body))["predicted_hit_tokens"] > 100
    exact_worker.die()
    await until(lambda: not exact_workers(router), "its end is noticed")
    lost = await ask(router, body)
    assert (lost["exact"], lost["predicted_hit_tokens"], lost["cached"]) == (False, 0, 0), "no belief is left either"


async def test_a_revived_worker_is_exact_again_with_its_later_life_only(
    start_exact: Any, exact_worker: ExactWorker
) -> None:
    router = await start_exact(exact_worker)
    await until(lambda: exact_workers(router) == ["p/w1"], "the worker is exact")
    before, after = chat(text(200, seed=1)), chat(text(200, seed=2))
    await ask(router, before)
    exact_worker.die()
    await until(lambda: not exact_workers(router), "its end is noticed")
    exact_worker.revive()
    await until(lambda: exact_workers(router) == ["p/w1"], "it is proven and followed again")
    for body in (before, after, before, after):
        each = await ask(router, body)
        assert each["exact"] and each["predicted_hit_tokens"] == each["cached"]


async def test_events_that_answers_do_not_confirm_lose_their_credit(
    start_exact: Any, exact_worker: ExactWorker
) -> None:
    router = await start_exact(exact_worker)
    await until(lambda: exact_workers(router) == ["p/w1"], "the worker is exact")
    exact_worker.lies = True
    body = chat(text(200, seed=1))
    seen = [await ask(router, body) for _ in range(5)]
    assert [each["predicted_hit_tokens"] > 100 for each in seen] == [False, True, True, True, True]
    await until(lambda: page(router)["workers"]["p/w1"]["events"] == "degraded: credit", "its credit is lost")
    await until(lambda: exact_workers(router) == [], "it is not believed any more")
    assert page(router)["status"] == "approximate: no worker's KV events are complete"
    assert not (await ask(router, body))["exact"]


async def test_events_that_do_not_come_are_noticed_c15(
    start_exact: Any, exact_worker: ExactWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "SILENT_S", 0.1)
    router = await start_exact(exact_worker)
    await until(lambda: exact_workers(router) == ["p/w1"], "the worker is exact")
    exact_worker.mute = True
    await ask(router, chat(text(1500, seed=1)))
    await until(lambda: page(router)["workers"]["p/w1"]["events"].startswith("silent"), "its silence is noticed")
    await until(lambda: exact_workers(router) == [], "it is not believed any more")


async def test_a_reply_that_tokenises_differently_is_matched_to_the_last_stable_block_c27(
    start_exact: Any, exact_worker: ExactWorker
) -> None:
    """The worker holds the reply as it was generated; rendered into the next turn it becomes other tokens."""
    router = await start_exact(exact_worker)
    await until(lambda: exact_workers(router) == ["p/w1"], "the worker is exact")
    reply = text(60, seed=8)
    exact_worker.reply_ids = [70 + number % 20 for number in range(200)]
    first = chat(text(200, seed=1))
    asked = await ask(router, first)
    follow_up = {"role": "user", "content": text(40, seed=9)}
    second = first | {"messages": [*first["messages"], {"role": "assistant", "content": reply}, follow_up]}
    told = await ask(router, second)
    assert told["exact"] and told["predicted_hit_tokens"] == told["cached"]
    stable = asked["predicted_prompt_tokens"]
    assert stable - 2 * BLOCK_SIZE < told["cached"] <= stable


async def test_a_long_unseen_prompt_is_tokenised_off_the_loop(
    start_exact: Any, exact_worker: ExactWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = await start_exact(exact_worker)
    await until(lambda: exact_workers(router) == ["p/w1"], "the worker is exact")
    finished: list[int] = []
    finish = ExactTokenizer.finish

    async def noted(self: ExactTokenizer, prepared: Any) -> Any:
        prefix = await finish(self, prepared)
        finished.append(prefix.tokens)
        return prefix

    monkeypatch.setattr(ExactTokenizer, "finish", noted)
    body = chat(text(6000, seed=5))
    first = await ask(router, body)
    again = await ask(router, body)
    assert len(finished) == 1 and finished[0] == first["predicted_prompt_tokens"]
    assert again["predicted_hit_tokens"] == again["cached"] > 5000


async def test_a_client_may_leave_while_its_prompt_is_tokenised(
    start_exact: Any, exact_worker: ExactWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = await start_exact(exact_worker)
    await until(lambda: exact_workers(router) == ["p/w1"], "the worker is exact")
    reading, given_up = asyncio.Event(), asyncio.Event()

    async def slow(self: ExactTokenizer, prepared: Any) -> Any:
        reading.set()
        try:
            await asyncio.sleep(60)
        finally:
            given_up.set()

    monkeypatch.setattr(ExactTokenizer, "finish", slow)
    asked = len(exact_worker.http.asked)
    posting = asyncio.create_task(router.post(chat(text(6000, seed=6))))
    await asyncio.wait_for(reading.wait(), 2)
    outstanding = router.runtime.table.state(now=0).worker_outstanding
    assert router.runtime.service.inflight == 1 and sum(outstanding.values()) == 0, "nothing is reserved meanwhile"
    posting.cancel()
    await asyncio.wait_for(given_up.wait(), 2)
    assert router.runtime.service.inflight == 0 and len(exact_worker.http.asked) == asked


async def test_a_mistake_in_reading_costs_no_answer(
    start_exact: Any, exact_worker: ExactWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = await start_exact(exact_worker)
    await until(lambda: exact_workers(router) == ["p/w1"], "the worker is exact")

    def mistake(*args: Any, **kwargs: Any) -> Any:
        raise KeyError("a mistake")

    monkeypatch.setattr(ExactTokenizer, "prepare_chat", mistake)
    assert not (await ask(router, chat(text(200, seed=1))))["exact"]


@pytest.mark.parametrize(
    ("fields", "settings", "why"),
    [
        ({"tokenizer": "absent"}, {}, "the model folder has no tokenizer.json"),
        ({"tokenizer": ".."}, {}, "the tokenizer must name one folder"),
        ({}, {"router_tokenizer_dir": None}, "TIDEMARK_ROUTER_TOKENIZER_DIR is not set"),
        ({"hash_algorithm": ""}, {}, "no worker has told its block hash"),
        ({"hash_algorithm": "xxhash"}, {}, "block hash 'xxhash' is not one of sha256, sha256_cbor"),
    ],
)
async def test_a_pool_that_cannot_be_exact_says_why_and_serves(
    start_exact: Any, exact_worker: ExactWorker, fields: dict[str, Any], settings: dict[str, Any], why: str
) -> None:
    router = await start_exact(exact_worker, **settings)
    snapshot = exact_snapshot(exact_worker, **fields)
    router.runtime._apply_snapshot(signed(snapshot, version=2), snapshot)
    await until(lambda: page(router)["status"] == f"approximate: {why}", why)
    assert not (await ask(router, chat(text(200, seed=1))))["exact"]


async def test_workers_with_different_block_hashes_are_not_one_exact_pool(
    start_exact: Any, exact_worker: ExactWorker, second_worker: ExactWorker
) -> None:
    router = await start_exact(exact_worker, second_worker)
    snapshot = exact_snapshot(exact_worker, second_worker)
    workers = snapshot.workers | {"p/w2": second_worker.entry(hash_algorithm="sha256_cbor")}
    snapshot = msgspec.structs.replace(snapshot, workers=workers)
    router.runtime._apply_snapshot(signed(snapshot, version=2), snapshot)
    assert page(router)["status"] == "approximate: the workers' block hashes differ"


async def test_a_pool_that_drops_its_tokenizer_is_approximate_again(
    start_exact: Any, exact_worker: ExactWorker
) -> None:
    router = await start_exact(exact_worker)
    await until(lambda: exact_workers(router) == ["p/w1"], "the worker is exact")
    snapshot = exact_snapshot(exact_worker)
    plain = msgspec.structs.replace(snapshot.pools["p"], tokenizer="")
    snapshot = msgspec.structs.replace(snapshot, pools={"p": plain})
    router.runtime._apply_snapshot(signed(snapshot, version=2), snapshot)
    assert router.runtime.exact.state()["pools"] == {} and not router.runtime.exact.pools
    assert not (await ask(router, chat(text(200, seed=1))))["exact"]


@pytest.mark.parametrize(
    "fields",
    [{"prompt_logprobs": 1}, {"echo": True, "logprobs": 1}, {"use_beam_search": True, "n": 2}, {"prompt": ["a", "b"]}],
)
async def test_requests_that_pass_the_cache_by_are_matched_by_text(
    start_exact: Any, exact_worker: ExactWorker, fields: dict[str, Any]
) -> None:
    router = await start_exact(exact_worker)
    await until(lambda: exact_workers(router) == ["p/w1"], "the worker is exact")
    api_body = {"model": MODEL, "prompt": text(100, seed=9)} | fields
    exact_worker.http.script = answer_json()
    answer = await router.post(api_body, path="/v1/completions")
    assert answer.status_code == 200
    explained = (await router.admin(f"/explain?request_id={answer.headers['x-request-id']}")).json()
    assert not explained["exact"]


@pytest.mark.interpreted
async def test_recent_decisions_are_bounded_by_their_blocks_too(
    start_exact: Any, exact_worker: ExactWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explaining, "RECENT_EXACT_BLOCKS_MAX", 100)
    router = await start_exact(exact_worker)
    await until(lambda: exact_workers(router) == ["p/w1"], "the worker is exact")
    ids = [(await ask(router, chat(text(400, seed=seed))))["request_id"] for seed in (1, 2, 3)]
    kept = [router.runtime._explainer._recent.get(each) is not None for each in ids]
    assert kept == [False, False, True], "each has more than 50 blocks"


async def test_a_template_that_leaves_tools_out_is_no_violation_s8(start_exact: Any, exact_worker: ExactWorker) -> None:
    """Equal tokens of different texts: the salted blocks that the worker told of explain the hit."""
    router = await start_exact(exact_worker)
    snapshot = exact_snapshot(exact_worker)
    spaces = snapshot.namespaces
    # A generation that began after all that the router may have missed: its history is whole.
    begun = {name: msgspec.structs.replace(space, generation_at=time.time() + 60) for name, space in spaces.items()}
    snapshot = msgspec.structs.replace(snapshot, namespaces=begun)
    router.runtime._apply_snapshot(signed(snapshot, version=2), snapshot)
    await until(lambda: exact_workers(router) == ["p/w1"], "the worker is exact")
    words = text(1500, seed=1)
    tool = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
    await ask(router, chat(words))
    again = await ask(router, chat(words, tools=[tool], tool_choice="none"))
    assert again["predicted_hit_tokens"] == again["cached"] > 1000
    router.runtime.telemetry.close_second(time.time())
    assert router.runtime.telemetry.totals.violations == 0
