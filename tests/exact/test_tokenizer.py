"""From request fields to hashes: what is known is had at once, what is long is tokenised beside the event loop."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from router.adapters import tokenizer as module
from router.adapters.chat_messages import Unrenderable
from router.adapters.tokenizer import Caller, ExactLimits, ExactTokenizer, decode_fields
from router.adapters.tokenizer_files import ModelFiles, load_model_files
from router.contract.ids import TenantId
from router.core.exact.block_hashes import BlockHasher
from tests.exact.conftest import BLOCK_SIZE, SECRET, metaspace, word_piece

ALICE = Caller(TenantId("alice"), "salt-a")
CHARLIE = Caller(TenantId("charlie"), "salt-c")
HASHER = BlockHasher(algorithm="sha256", block_size=BLOCK_SIZE)
LONG = "def function(value): return value * 2  # naïve\n" * 400


def chat(*texts: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)], **more}


@pytest.mark.parametrize(
    ("is_chat", "fields"),
    [
        (True, chat("hi")),
        (True, chat(LONG, "ok", "more <|end|> and <|user|>")),
        (True, chat(LONG, add_generation_prompt=False)),
        (False, {"prompt": LONG}),
        (False, {"prompt": [LONG]}),
        (False, {"prompt": ""}),
    ],
)
async def test_hashes_are_those_of_the_whole_prompts_tokens(
    exact: ExactTokenizer, model_files: ModelFiles, is_chat: bool, fields: dict[str, Any]
) -> None:
    text, _ = exact.prompt(fields, chat=is_chat)
    ids = model_files.tokenizer.encode(text, add_special_tokens=False).ids
    for _ in range(2):
        prefix = await exact.fingerprint(ALICE, fields, chat=is_chat)
        assert (prefix.hashes, prefix.tokens) == (HASHER.hashes(ids, salt="salt-a"), len(ids))
    assert exact.token_ids(fields, chat=is_chat) == ids


@pytest.mark.parametrize("ids", [[1], list(range(4000)), [5] * 20_000])
async def test_a_prompt_of_token_ids_is_hashed_as_it_is(exact: ExactTokenizer, ids: list[int]) -> None:
    for prompt in (ids, [ids]):
        prefix = await exact.fingerprint(ALICE, {"prompt": prompt}, chat=False)
        assert (prefix.hashes, prefix.tokens) == (HASHER.hashes(ids, salt="salt-a"), len(ids))


async def test_special_tokens_surround_a_text_but_not_a_chat(folder_of: Callable[..., Path]) -> None:
    files = load_model_files(folder_of(word_piece([]), chat_template="{{ messages[0].content }}"))
    exact = ExactTokenizer(files, hasher=BlockHasher(algorithm="sha256", block_size=2), secret=SECRET)
    text = "the quick brown fox"
    cases = [
        (False, {"prompt": text}, True),
        (False, {"prompt": text, "add_special_tokens": False}, False),
        (True, chat(text), False),
        (True, chat(text, add_special_tokens=True), True),
    ]
    for is_chat, fields, special in cases:
        ids = files.tokenizer.encode(text, add_special_tokens=special).ids
        assert exact.token_ids(fields, chat=is_chat) == ids
        prefix = await exact.fingerprint(ALICE, fields, chat=is_chat)
        assert prefix.hashes == HASHER_OF_2.hashes(ids, salt="salt-a")
    exact.close()


HASHER_OF_2 = BlockHasher(algorithm="sha256", block_size=2)


async def test_a_text_made_of_added_tokens_is_cut_only_so_often(
    exact: ExactTokenizer, model_files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.core.exact.segments.CUTS_MAX", 10)
    for repeats in (7, 21, 22, 64):
        text = "a <|end|> b<|user|>" * repeats
        prefix = await exact.fingerprint(ALICE, {"prompt": text}, chat=False)
        assert prefix.hashes == HASHER.hashes(model_files.tokenizer.encode(text).ids, salt="salt-a")


async def test_a_tokenizer_that_cannot_be_cut_still_gives_exact_hashes(folder_of: Callable[..., Path]) -> None:
    files = load_model_files(folder_of(metaspace("first")))
    exact = ExactTokenizer(files, hasher=HASHER_OF_2, secret=SECRET)
    assert exact.uncut
    text = "the</s>quick <s> fox" * 300
    prefix = await exact.fingerprint(ALICE, {"prompt": text}, chat=False)
    assert prefix.hashes == HASHER_OF_2.hashes(files.tokenizer.encode(text).ids, salt="salt-a")
    exact.close()


def test_a_short_prompt_needs_no_thread(exact: ExactTokenizer) -> None:
    prepared = exact.prepare(ALICE, chat("hi"), chat=True)
    assert not exact.needs_tokenizing(prepared)
    assert exact.finish_now(prepared) is not None


async def test_a_long_unseen_prompt_needs_one_and_a_known_one_none(exact: ExactTokenizer) -> None:
    prepared = exact.prepare(ALICE, chat(LONG), chat=True)
    assert exact.needs_tokenizing(prepared) and prepared.unknown_bytes == len(LONG.encode())
    assert exact.finish_now(prepared) is None
    prefix = await exact.finish(prepared)
    again = exact.prepare(ALICE, chat(LONG), chat=True)
    assert again.prefix == prefix
    grown = exact.prepare(ALICE, chat(LONG, "ok", "go on"), chat=True)
    assert grown.unknown_bytes == len("ok" + "go on")
    assert exact.finish_now(grown) is not None


@pytest.fixture
def encoding(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[str], threading.Event]]:
    """(names of threads that tokenised a long text, the gate they wait at)."""
    threads: list[str] = []
    gate = threading.Event()
    encode = module.encode

    def watched(tokenizer: Any, text: str) -> list[int]:
        if len(text) > 1000:
            threads.append(threading.current_thread().name)
            assert gate.wait(10)
        return encode(tokenizer, text)

    monkeypatch.setattr(module, "encode", watched)
    yield threads, gate
    gate.set()


async def test_a_text_many_wait_for_is_tokenised_once_and_elsewhere(
    exact: ExactTokenizer, encoding: tuple[list[str], threading.Event]
) -> None:
    threads, gate = encoding
    waiting = [asyncio.create_task(exact.fingerprint(ALICE, chat(LONG), chat=True)) for _ in range(5)]
    await asyncio.sleep(0.05)
    waiting[0].cancel()  # the client that came first leaves
    gate.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert len({tuple(prefix.hashes) for prefix in results[1:]}) == 1  # type: ignore[union-attr]
    assert len(threads) == 1 and threads[0].startswith("tokenize")


async def test_another_tenants_text_is_not_waited_for(
    exact: ExactTokenizer, encoding: tuple[list[str], threading.Event]
) -> None:
    threads, gate = encoding
    gate.set()
    await asyncio.gather(*(exact.fingerprint(caller, chat(LONG), chat=True) for caller in (ALICE, CHARLIE)))
    assert len(threads) == 2


async def test_too_many_unseen_texts_go_without_a_fingerprint(
    model_files: ModelFiles, encoding: tuple[list[str], threading.Event]
) -> None:
    _, gate = encoding
    exact = ExactTokenizer(model_files, hasher=HASHER, secret=SECRET, limits=ExactLimits(waiting_max=2))
    waiting = [asyncio.create_task(exact.fingerprint(ALICE, chat(LONG + str(n)), chat=True)) for n in range(3)]
    await asyncio.sleep(0.05)
    with pytest.raises(Unrenderable, match="limit"):
        await waiting[2]
    gate.set()
    await asyncio.gather(*waiting[:2])
    assert (await exact.fingerprint(ALICE, chat(LONG + "2"), chat=True)).tokens
    exact.close()


async def test_the_event_loop_goes_on_while_a_long_text_is_tokenised(exact: ExactTokenizer) -> None:
    exact.finish_now(exact.prepare(ALICE, chat("warm up"), chat=True))
    task = asyncio.create_task(exact.fingerprint(ALICE, chat(LONG * 8), chat=True))
    turns = 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 100


@pytest.mark.parametrize(
    ("is_chat", "fields", "reason"),
    [
        (True, chat("hi", truncate_prompt_tokens=5), "truncated"),
        (True, chat("hi", chat_template="{{ 1 }}"), "own chat template"),
        (True, chat("hi", chat_template_kwargs={"tools": []}), "worker's own"),
        (True, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "not text"),
        (True, chat("hi", tools=[]), "tools are empty"),
        (True, chat("\ud800"), "Unicode"),
        (True, {}, "no messages"),
        (False, {"prompt": "a", "suffix": "b"}, "suffix"),
        (False, {"prompt": ["a", "b"]}, "several prompts"),
        (False, {"prompt": []}, "several prompts"),
        (False, {"prompt": [[1], [2]]}, "several prompts"),
        (False, {"prompt": [-1]}, "out of range"),
        (False, {"prompt": [2**40]}, "out of range"),
        (False, {}, "several prompts"),
    ],
)
async def test_what_cannot_be_known_says_why(
    exact: ExactTokenizer, is_chat: bool, fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Unrenderable, match=reason):
        await exact.fingerprint(ALICE, fields, chat=is_chat)


async def test_a_model_without_template_still_knows_prompts(folder_of: Callable[..., Path]) -> None:
    exact = ExactTokenizer(load_model_files(folder_of(metaspace("always"))), hasher=HASHER, secret=SECRET)
    assert not exact.has_template
    with pytest.raises(Unrenderable, match="no chat template"):
        exact.prepare(ALICE, chat("hi"), chat=True)
    assert (await exact.fingerprint(ALICE, {"prompt": "fox"}, chat=False)).tokens
    exact.close()


def test_numbers_keep_the_form_the_worker_prints() -> None:
    raws = {
        "messages": b'[{"role":"user","content":"hi"}]',
        "tools": b'[{"n": 123456789012345678901234567890, "f": 1.0}]',
        "temperature": b"0.5",
    }
    fields = decode_fields(raws, chat=True)
    assert set(fields) == {"messages", "tools"}
    assert json.dumps(fields["tools"]) == '[{"n": 123456789012345678901234567890, "f": 1.0}]'


async def test_memory_is_bounded(model_files: ModelFiles) -> None:
    limits = ExactLimits(chains_bytes_max=300_000, segments_bytes_max=100_000)
    exact = ExactTokenizer(model_files, hasher=HASHER, secret=SECRET, limits=limits)
    used = []
    for number in range(300):
        await exact.fingerprint(ALICE, chat(f"{number} " * 400), chat=True)
        used.append(exact.bytes_used)
    assert 100_000 < max(used) < 440_000
    exact.close()
