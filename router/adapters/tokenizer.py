"""Exact prefixes of requests: template, tokenizer and block hashes of one model, as its workers compute them.

    exact = ExactTokenizer(load_model_files(folder), hasher=BlockHasher(…), secret=…, now=datetime.now)
    prepared = exact.prepare(caller, fields, chat=True)     # raises Unrenderable: route by load
    prepared = exact.prepare_chat(caller, raws)             # the same from JSON, of which known messages are not read
    prefix = exact.finish_now(prepared)                     # None: too much unseen text for the event loop
    prefix = prefix or await exact.finish(prepared)         # raises Unrenderable when tokenising is at its limit

`fingerprint` is the three in one. Everything runs on the event loop but tokenising, which happens in threads of low
priority that hold no lock meanwhile; a text that several requests of a tenant wait for is tokenised once.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from array import array
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import accumulate
from typing import Any

import msgspec

from router.adapters.chat_messages import Unrenderable
from router.adapters.chat_raw import beside, last_end, message_ends, messages_behind, raw_messages
from router.adapters.chat_template import CHAT_FIELDS, PROMPT_CHARS_MAX, ChatTemplate
from router.adapters.tokenizer_files import ModelFiles, encode
from router.contract.ids import TenantId
from router.contract.secrets import framed
from router.core.exact.block_hashes import Adapter, BlockHasher
from router.core.exact.chains import ExactPrefix, PromptChains, Reading, Scope, run_out
from router.core.exact.heads import Found, Head, Heads, Root
from router.core.exact.segments import Piece, SegmentCache

TEXT_FIELDS = ("prompt", "suffix", "add_special_tokens", "truncate_prompt_tokens")
"""Fields of a text completion that decide its prompt."""
THREAD_NICENESS = 10
"""The event loop goes first. On a full machine it wakes 0.2 ms late at the median beside such threads, else 6 ms."""

_decode = msgspec.json.decode


@dataclass(frozen=True, slots=True)
class ExactLimits:
    chains_bytes_max: int = 128 * 1024 * 1024
    """Known prompts; 1M blocks of 16 tokens take about 9 MiB, beside what is said of each message."""
    segments_bytes_max: int = 64 * 1024 * 1024
    """Token ids of known pieces, 4 bytes a token."""
    tenant_share_max: float = 0.5
    inline_text_bytes: int = 2048
    """Unseen text tokenised on the event loop: about 1 ms, ten times a hand-over to a thread."""
    inline_hash_bytes: int = 32 * 1024
    """Unhashed text finished on the event loop in one go: 512 blocks of 16 tokens, 0.8 ms."""
    threads_max: int = 2
    waiting_max: int = 64
    """Texts tokenised or waiting for it at one time; beyond it requests go without a fingerprint."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose cache the prompt is for."""

    tenant: TenantId
    salt: str
    adapter: Adapter | None = None


@dataclass(frozen=True, slots=True)
class Growth:
    """What to remember of a conversation, for its next turn."""

    found: Found
    places: list[tuple[int, int]]
    """Ends of messages: (bytes of their JSON, bytes of the prompt)."""


@dataclass(slots=True)
class Prepared:
    """A request's prompt and what is known of it."""

    prefix: ExactPrefix | None
    scope: Scope
    reading: Reading | None = None
    ids: list[int] | None = None
    """The prompt itself where it came as token ids; then there is no `reading`."""
    growth: Growth | None = None

    @property
    def text(self) -> bytes:
        return b"" if self.reading is None else self.reading.text

    @property
    def unknown_bytes(self) -> int:
        """Text that has to be tokenised."""
        return 0 if self.reading is None or self.prefix is not None else self.reading.unknown_bytes


class ExactTokenizer:
    """One model's prompts, for workers of one block hasher. Belongs to one event loop; `close` ends its threads.

    `secret`: 32 bytes, `FleetKey.subkey`. `template_arguments`: the workers' default template arguments. Raises
    ValueError when the model's chat template cannot be used.
    """

    def __init__(
        self,
        files: ModelFiles,
        *,
        hasher: BlockHasher,
        secret: bytes,
        now: Callable[[], datetime] = datetime.now,
        limits: ExactLimits | None = None,
        template_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self._limits = limits = limits or ExactLimits()
        self._files = files
        self._template: ChatTemplate | None = None
        if files.templates:
            self._template = ChatTemplate(
                files.templates, special_tokens=files.special_tokens, now=now, arguments=template_arguments
            )
        share = limits.tenant_share_max
        segments = SegmentCache(secret=secret, bytes_max=limits.segments_bytes_max, tenant_share_max=share)
        self._chains = PromptChains(
            hasher=hasher,
            cuts=files.cuts,
            segments=segments,
            secret=secret,
            bytes_max=limits.chains_bytes_max,
            tenant_share_max=share,
        )
        self._segments = segments
        self._heads = Heads(self._chains.cache)
        self._under_way: dict[int, asyncio.Future[array[int]]] = {}
        self._threads = ThreadPoolExecutor(limits.threads_max, "tokenize", initializer=_stand_back)

    @property
    def version(self) -> str:
        """Of the model's files: 16 hexadecimal digits."""
        return self._files.version

    @property
    def has_template(self) -> bool:
        return self._template is not None

    @property
    def template(self) -> ChatTemplate | None:
        return self._template

    @property
    def uncut(self) -> str:
        """Why texts are tokenised whole, or "" when they are cut at added tokens."""
        return self._files.uncut

    def added_tokens(self) -> list[str]:
        """Texts of the tokenizer's added tokens, in the order of their ids."""
        decoder = self._files.tokenizer.get_added_tokens_decoder()
        return [decoder[number].content for number in sorted(decoder)]

    @property
    def bytes_used(self) -> int:
        return self._chains.bytes_used + self._segments.bytes_used

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def prepare(self, caller: Caller, fields: Mapping[str, Any], *, chat: bool) -> Prepared:
        """Renders the request and looks up what is known. Raises Unrenderable with the reason.

        `fields`: decoded values of CHAT_FIELDS or TEXT_FIELDS (`decode_fields`); others are ignored.
        """
        scope = Scope(caller.tenant, caller.salt, caller.adapter)
        prompt, special = self.prompt(fields, chat=chat)
        if isinstance(prompt, list):
            return Prepared(None, scope, ids=prompt)
        if special:
            scope = replace(scope, before=self._files.before, after=self._files.after)
        reading = self._chains.read(scope, _utf8(prompt))
        return Prepared(reading.prefix, scope, reading)

    def prepare_chat(self, caller: Caller, raws: Mapping[str, Any]) -> Prepared:
        """`prepare` of a chat from the JSON of its fields (Any: `msgspec.Raw`, bytes or a memoryview). Of a known
        conversation that goes on only what is new is decoded and rendered. Raises Unrenderable.
        """
        template, raw = self._template, raw_messages(raws)
        if template is None or raw is None or not template.any_apart:
            return self.prepare(caller, decode_fields(raws, chat=True), chat=True)
        scope = Scope(caller.tenant, caller.salt, caller.adapter)
        found = self._heads.find(scope.tenant, self._root(scope, raws), raw)
        if found.head is not None:
            prepared = self._read_on(scope, template, raws, found, found.head)
            if prepared is not None:
                return prepared
        fields = decode_fields(raws, chat=True)
        pieces = template.render_apart(fields)
        if pieces is None:
            return self.prepare(caller, fields, chat=True)
        reading = self._chains.read(scope, _utf8("".join(pieces)))
        ends = message_ends(raw)
        text_ends = list(accumulate(len(piece.encode()) for piece in pieces[:-1]))
        places = [(ends[at], text_ends[at + 1]) for at in self._heads.wanted(found, ends)]
        return Prepared(reading.prefix, scope, reading, growth=Growth(found, places))

    def _root(self, scope: Scope, raws: Mapping[str, Any]) -> Root:
        stream, key = self._chains.root(scope, b"chat")
        fields = beside(raws)
        if not fields:
            return stream, int.from_bytes(key)
        stream.update(framed(*fields))
        return stream, stream.intdigest()

    def _read_on(
        self, scope: Scope, template: ChatTemplate, raws: Mapping[str, Any], found: Found, head: Head
    ) -> Prepared | None:
        """The conversation behind `head`; None where it has to be read whole."""
        messages = messages_behind(found.raw, head.end)
        if messages is None:
            return None
        fields = decode_fields({name: raw for name, raw in raws.items() if name != "messages"}, chat=True)
        try:
            pieces = template.render_further(fields, messages)
            text = None if pieces is None else [piece.encode() for piece in pieces]
        except (Unrenderable, UnicodeEncodeError):
            return None
        if text is None or head.text_bytes + sum(map(len, text)) > PROMPT_CHARS_MAX:
            return None
        reading = self._chains.read_on(scope, head.anchor, b"".join(text))
        if reading is None:
            return None
        growth = None
        if messages:
            place = (last_end(found.raw), head.text_bytes + sum(map(len, text[:-1])))
            growth = Growth(found, [place])
        return Prepared(None, scope, reading, growth=growth)

    def needs_tokenizing(self, prepared: Prepared) -> bool:
        """Whether there is too much unseen text, or too much to hash, for the event loop."""
        reading, limits = prepared.reading, self._limits
        if prepared.prefix is not None:
            return False
        if reading is None:
            assert prepared.ids is not None
            return 4 * len(prepared.ids) > limits.inline_hash_bytes
        return reading.unknown_bytes > limits.inline_text_bytes or reading.unhashed_bytes > limits.inline_hash_bytes

    def finish_now(self, prepared: Prepared) -> ExactPrefix | None:
        """The prefix when it is known or quickly had, else None."""
        if prepared.prefix is None and not self.needs_tokenizing(prepared):
            reading = prepared.reading
            for piece in reading.unknown if reading is not None else ():
                piece.ids = self._encode(prepared.text, piece)
            prepared.prefix = run_out(self._work(prepared))
        return prepared.prefix

    async def finish(self, prepared: Prepared) -> ExactPrefix:
        """The prefix, however long it takes. Raises Unrenderable when too many texts wait already."""
        prefix = self.finish_now(prepared)
        if prefix is not None:
            return prefix
        text = prepared.text
        for piece in prepared.reading.unknown if prepared.reading is not None else ():
            if piece.end - piece.start <= self._limits.inline_text_bytes:
                piece.ids = self._encode(text, piece)
                await asyncio.sleep(0)
            else:
                piece.ids = await self._tokenized(text, piece)
        work = self._work(prepared)
        while True:
            try:
                next(work)
            except StopIteration as done:
                result: ExactPrefix = done.value
                prepared.prefix = result
                return result
            await asyncio.sleep(0)

    async def fingerprint(self, caller: Caller, fields: Mapping[str, Any], *, chat: bool) -> ExactPrefix:
        """`prepare` and `finish`. Raises Unrenderable."""
        return await self.finish(self.prepare(caller, fields, chat=chat))

    def prompt(self, fields: Mapping[str, Any], *, chat: bool) -> tuple[str | list[int], bool]:
        """(the prompt as text or token ids, whether special tokens are added around it). Raises Unrenderable."""
        if fields.get("truncate_prompt_tokens") is not None:
            raise Unrenderable("the prompt is truncated by the worker")
        if chat:
            if self._template is None:
                raise Unrenderable("the model has no chat template")
            return self._template.render(fields), bool(fields.get("add_special_tokens", False))
        if fields.get("suffix") is not None:
            raise Unrenderable("the prompt has a suffix")
        return _single_prompt(fields.get("prompt")), bool(fields.get("add_special_tokens", True))

    def token_ids(self, fields: Mapping[str, Any], *, chat: bool) -> list[int]:
        """Token ids of the whole prompt, uncached: for the parity check. Raises Unrenderable."""
        prompt, special = self.prompt(fields, chat=chat)
        if isinstance(prompt, list):
            return prompt
        text, ids = _utf8(prompt), array("I")
        for piece in self._files.cuts.split(text, 0):
            ids += piece.ids if piece.ids is not None else self._encode(text, piece)
        return [*self._files.before, *ids, *self._files.after] if special else ids.tolist()

    def _work(self, prepared: Prepared) -> Generator[None, None, ExactPrefix]:
        """What is left of a prompt whose pieces are tokenised, in shares fit for the event loop."""
        if prepared.reading is not None:
            yield from self._chains.work(prepared.reading)
            assert prepared.reading.prefix is not None
            if prepared.growth is not None:
                self._learn(prepared.scope, prepared.reading, prepared.growth)
            return prepared.reading.prefix
        assert prepared.ids is not None
        try:
            return (yield from self._chains.work_ids(prepared.scope, prepared.ids))
        except OverflowError:
            raise Unrenderable("a token id is out of range") from None

    def _learn(self, scope: Scope, reading: Reading, growth: Growth) -> None:
        anchors = [(place, self._chains.anchor(reading, place[1])) for place in growth.places]
        heads = [Head(end, anchor, at) for (end, at), anchor in anchors if anchor is not None]
        self._heads.learn(scope.tenant, growth.found, heads)

    async def _tokenized(self, text: bytes, piece: Piece) -> array[int]:
        """Ids of a long piece from a thread; waits for one that is under way."""
        future = self._under_way.get(piece.key)
        if future is None:
            if len(self._under_way) >= self._limits.waiting_max:
                raise Unrenderable("tokenising is at its limit")
            loop = asyncio.get_running_loop()
            future = loop.run_in_executor(self._threads, self._encode, text, piece)
            self._under_way[piece.key] = future
            future.add_done_callback(partial(self._forget, piece.key))
        # Shielded: a client that leaves must not take the text from others who wait for it.
        return await asyncio.shield(future)

    def _forget(self, key: int, _: object) -> None:
        del self._under_way[key]

    def _encode(self, text: bytes, piece: Piece) -> array[int]:
        return array("I", encode(self._files.tokenizer, text[piece.start : piece.end].decode()))


def decode_fields(raws: Mapping[str, Any], *, chat: bool) -> dict[str, Any]:
    """The fields that decide the prompt, decoded. Any: `msgspec.Raw` or bytes, JSON that has been checked, or messages
    that are decoded already.

    The standard library decodes all but the conversation, because its numbers are what the worker prints into prompts.
    """
    fields = {}
    for name in CHAT_FIELDS if chat else TEXT_FIELDS:
        if name in raws:
            raw = raws[name]
            if type(raw) is list:
                fields[name] = raw
                continue
            fields[name] = _decode(raw) if name in ("messages", "prompt") else json.loads(bytes(raw))
    return fields


def _single_prompt(prompt: Any) -> str | list[int]:
    """Any: decoded JSON of the client."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return prompt
    raise Unrenderable("several prompts, or none")


def _utf8(text: str) -> bytes:
    if len(text) > PROMPT_CHARS_MAX:
        raise Unrenderable("the prompt is too long")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Unrenderable("the prompt is not valid Unicode") from None


def _stand_back() -> None:
    if sys.platform == "linux":
        # On Linux a niceness belongs to the thread.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), THREAD_NICENESS)
