"""Parity with a worker's `/tokenize`: equal ids are proof, a difference is named by place, silence proves nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.adapters.parity import ParityReport, check_parity, first_difference, probes
from router.adapters.tokenizer import ExactTokenizer
from router.adapters.tokenizer_files import load_model_files
from router.core.exact.block_hashes import Adapter, BlockHasher
from tests.exact.conftest import SECRET, metaspace

URL = "http://worker:8000/"
MODELS = {
    "object": "list",
    "data": [
        {"id": "tiny", "root": "/models/tiny", "parent": None},
        {"id": "sql", "root": "/adapters/sql", "parent": "tiny"},
    ],
}
Answer = Callable[[dict[str, Any]], httpx.Response]


async def check(exact: ExactTokenizer, answer: Answer, models: httpx.Response | None = None) -> ParityReport:
    models = models or httpx.Response(200, json=MODELS)

    def handle(request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == "Bearer k"
        if request.url == "http://worker:8000/v1/models":
            return models
        assert request.url == "http://worker:8000/tokenize"
        return answer(json.loads(request.content))

    async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as client:
        return await check_parity(client, URL, exact, model="tiny", headers={"authorization": "Bearer k"})


def tokens(exact: ExactTokenizer, body: dict[str, Any]) -> list[int]:
    assert body.pop("model") == "tiny"
    return exact.token_ids(body, chat="messages" in body)


def answer_with(ids: list[int]) -> httpx.Response:
    return httpx.Response(200, json={"count": len(ids), "max_model_len": 9, "tokens": ids})


async def test_a_worker_with_the_same_tokenizer_is_equal(exact: ExactTokenizer) -> None:
    report = await check(exact, lambda body: answer_with(tokens(exact, body)))
    assert (report.verdict, report.skipped, report.probe) == ("equal", 0, "")
    assert report.equal == len(list(probes(exact))) and report.version == exact.version


async def test_one_different_token_is_named_by_probe_and_place(exact: ExactTokenizer) -> None:
    def answer(body: dict[str, Any]) -> httpx.Response:
        ids = tokens(exact, body)
        return answer_with([*ids[:3], ids[3] + 1, *ids[4:]] if "tools" in body else ids)

    report = await check(exact, answer)
    assert (report.verdict, report.probe, report.position) == ("different", "chat with tools", 3)
    assert "fox" not in repr(report)


async def test_a_worker_with_another_template_is_different(model_folder: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((model_folder / name).read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content | trim }}{% endfor %}")
    ours, theirs = (
        ExactTokenizer(load_model_files(folder), hasher=BlockHasher(algorithm="sha256", block_size=16), secret=SECRET)
        for folder in (model_folder, tmp_path)
    )
    report = await check(ours, lambda body: answer_with(tokens(theirs, body)))
    assert (report.verdict, report.position) == ("different", 0)
    ours.close()
    theirs.close()


async def test_probes_the_worker_refuses_are_skipped(exact: ExactTokenizer) -> None:
    def answer(body: dict[str, Any]) -> httpx.Response:
        return httpx.Response(400) if "tools" in body else answer_with(tokens(exact, body))

    report = await check(exact, answer)
    assert (report.verdict, report.skipped) == ("equal", 2)


async def test_a_worker_that_refuses_every_chat_proves_nothing(exact: ExactTokenizer) -> None:
    def answer(body: dict[str, Any]) -> httpx.Response:
        return httpx.Response(400) if "messages" in body else answer_with(tokens(exact, body))

    assert (await check(exact, answer)).verdict == "unknown"


async def test_a_model_without_template_is_proven_by_prompts(folder_of: Callable[..., Path]) -> None:
    hasher = BlockHasher(algorithm="sha256", block_size=16)
    exact = ExactTokenizer(load_model_files(folder_of(metaspace("always"))), hasher=hasher, secret=SECRET)
    assert (await check(exact, lambda body: answer_with(tokens(exact, body)))).verdict == "equal"
    exact.close()


def unreachable(_: dict[str, Any]) -> httpx.Response:
    raise httpx.ConnectError("refused")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (unreachable, "ConnectError"),
        (lambda _: httpx.Response(404), "status 404"),
        (lambda _: httpx.Response(200, content=b"[]"), "not understood"),
        (lambda _: httpx.Response(200, json={"tokens": ["a"]}), "not understood"),
        (lambda _: httpx.Response(200, content=b" " * 2_000_000), "too long"),
    ],
)
async def test_a_worker_without_a_usable_answer_proves_nothing(
    exact: ExactTokenizer, answer: Answer, reason: str
) -> None:
    report = await check(exact, answer)
    assert report.verdict == "unknown" and reason in report.reason


async def test_it_tells_adapters_from_the_model(exact: ExactTokenizer) -> None:
    report = await check(exact, lambda body: answer_with(tokens(exact, body)))
    assert report.models == {"tiny": None, "sql": Adapter("sql", "/adapters/sql")}


@pytest.mark.parametrize(
    ("models", "reason"),
    [
        (httpx.Response(401), "status 401"),
        (httpx.Response(200, content=b"[]"), "not understood"),
        (httpx.Response(200, json={"data": [{"id": 7}]}), "not understood"),
        (httpx.Response(200, content=b" " * 2_000_000), "too long"),
    ],
)
async def test_a_worker_that_does_not_list_its_models_proves_nothing(
    exact: ExactTokenizer, models: httpx.Response, reason: str
) -> None:
    report = await check(exact, lambda body: answer_with(tokens(exact, body)), models)
    assert report.verdict == "unknown" and reason in report.reason and not report.models


@given(head=st.lists(st.integers(0, 9)), left=st.lists(st.integers(0, 9)), right=st.lists(st.integers(10, 19)))
def test_the_first_difference_is_where_equal_heads_end(head: list[int], left: list[int], right: list[int]) -> None:
    expected = len(head) if left or right else None
    assert first_difference(head + left, head + right) == expected
