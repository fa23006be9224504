"""What makes two prompts the same prefix, seen from outside by `/explain` (C19, C21, C23, C25)."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from router.contract.snapshot import PolicySnapshot, PoolPolicy
from tests.router.conftest import ALICE_KEY, CHARLIE_KEY, RunningRouter, StartRouter, snapshot_for
from tests.router.scripted_worker import ScriptedWorker

LONG = "".join(f"{number} words of a long prompt. " for number in range(200))
ADAPTER = "adapter-a"


def _snapshot(urls: list[str]) -> PolicySnapshot:
    pool = PoolPolicy(models=("m", ADAPTER, "adapter-b"))
    return msgspec.structs.replace(snapshot_for(urls), pools={"p": pool})


@pytest.fixture
async def router(start_router: StartRouter, worker: ScriptedWorker, other_worker: ScriptedWorker) -> RunningRouter:
    return await start_router(_snapshot([worker.url, other_worker.url]))


async def predicted(router: RunningRouter, body: dict[str, Any], *, key: str = ALICE_KEY, path: str) -> int:
    """Tokens of the body that some worker is thought to hold already."""
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=router.admin_url, trust_env=False, headers=headers) as client:
        page = (await client.post("/explain", params={"path": path}, json=body)).json()
    return max(each.get("matched_tokens", 0) for each in page["candidates"])


async def shared(router: RunningRouter, first: dict[str, Any], second: dict[str, Any], **how: str) -> bool:
    """Whether `second` finds the prefix that `first` left."""
    path = how.pop("path", "/v1/chat/completions")
    assert await predicted(router, first, path=path) == 0
    assert (await router.post(first, path=path)).status_code == 200
    return await predicted(router, second, path=how.pop("second_path", path), **how) > 500  # type: ignore[arg-type]


def chat(text: Any = LONG, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


async def test_it_finds_the_same_prompt_again(router: RunningRouter) -> None:
    assert await shared(router, chat(), chat(temperature=0.1, max_tokens=5))


async def test_it_gives_no_affinity_across_salts(router: RunningRouter) -> None:
    assert not await shared(router, chat(), chat(), key=CHARLIE_KEY)  # C19


async def test_it_ignores_a_salt_that_the_client_makes_up(router: RunningRouter) -> None:
    assert await shared(router, chat(cache_salt="mine"), chat(cache_salt="other"))


@pytest.mark.parametrize(("first", "second"), [("m", ADAPTER), (ADAPTER, "m"), (ADAPTER, "adapter-b")])
async def test_it_keeps_adapters_apart(router: RunningRouter, first: str, second: str) -> None:
    assert not await shared(router, {**chat(), "model": first}, {**chat(), "model": second})  # C23


async def test_it_finds_an_adapters_own_prompt_again(router: RunningRouter) -> None:
    assert await shared(router, {**chat(), "model": ADAPTER}, {**chat(), "model": ADAPTER})


def image(url: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": LONG[:200]}, {"type": "image_url", "image_url": {"url": url}, **fields}]


async def test_it_knows_an_image_by_its_content_whatever_the_adapter_is_called(router: RunningRouter) -> None:
    """C21: an adapter's name is no image hash, and an image's mark is no adapter."""
    one = {**chat(image("https://example.com/a.png")), "model": ADAPTER}
    same = {**chat(image("https://example.com/a.png", uuid=ADAPTER)), "model": ADAPTER}
    path = "/v1/chat/completions"
    assert (await router.post(one)).status_code == 200
    found = await predicted(router, same, path=path)
    other = await predicted(router, {**chat(image("https://example.com/b.png")), "model": ADAPTER}, path=path)
    assert found > other >= 0
    assert await predicted(router, {**same, "model": "m"}, path=path) == 0


def tool(name: str = "look", **fields: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "number"}}}
    return {"type": "function", "function": {"name": name, "description": LONG, "parameters": parameters, **fields}}


async def test_it_takes_tools_in_any_key_order_for_the_same(router: RunningRouter) -> None:
    turned = {"function": dict(reversed(tool()["function"].items())), "type": "function"}
    turned["function"]["parameters"] = {
        "properties": {"b": {"type": "number"}, "a": {"type": "string"}},
        "type": "object",
    }
    assert await shared(router, chat(tools=[tool()]), chat(tools=[turned]))  # C25


async def test_it_keeps_different_tools_apart(router: RunningRouter) -> None:
    assert not await shared(router, chat(tools=[tool()]), chat(tools=[tool("find", description="other " + LONG)]))


@pytest.mark.parametrize("settings", [{"enable_thinking": True}, {"enable_thinking": False, "x": None}, {}, None])
async def test_it_does_not_part_at_block_0_for_a_switch(router: RunningRouter, settings: Any) -> None:
    assert await shared(router, chat(), chat(chat_template_kwargs=settings, reasoning_effort="low"))  # C25


async def test_it_finds_a_conversation_on_every_endpoint(router: RunningRouter) -> None:
    messages = [{"role": "user", "content": LONG}]
    assert await shared(
        router, chat(), {"model": "m", "max_tokens": 5, "messages": messages}, second_path="/v1/messages"
    )
    assert await predicted(router, {"model": "m", "input": LONG}, path="/v1/responses") > 500


async def test_it_takes_token_ids_for_what_they_are(router: RunningRouter) -> None:
    ids = list(range(2, 2002))
    path = "/v1/completions"
    assert await shared(router, {"model": "m", "prompt": ids}, {"model": "m", "prompt": [ids]}, path=path)
    assert await predicted(router, {"model": "m", "prompt": ids[1:]}, path=path) == 0
