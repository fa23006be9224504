"""Block hashes of prompts seen before, found without tokenising or hashing what is known.

    prompt    ████████████████│███████│██████▒▒▒▒     ▒ unseen
    marks     ↑       ↑       ↑                       digest of all bytes up to every 8 KiB → node
    steps                     └──────→└─────→         (node, next bytes up to an added token) → node
    whole     digest of all bytes → the prompt's end

A node stands behind an added token, where tokens never cross (`segments`): it knows the number of blocks before it, the
last full hash and the ids that do not fill a block yet. Hashes live in runs: a conversation that grows appends to its
run; a prompt that parts from another begins a run that refers to the first.

Cost of a known prompt: one XXH3 pass over its bytes, 0.6 µs a mark, 1.5 µs a step behind the last mark, and a list
copy; together 10 µs for 16k tokens and 50 for 128k, 35 and 60 where the prompt goes on behind what is known.
Memory: `HASH_BYTES` a block and about 450 bytes a step, bounded by tenant and in total. Every key contains the salt:
nothing is shared between namespaces, and what was under a rotated salt ages out.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

import xxhash

from router.contract.ids import TenantId
from router.contract.secrets import framed
from router.core.exact.block_hashes import Adapter, BlockHasher
from router.core.exact.segments import Cuts, Piece, SegmentCache, TokenIds
from router.core.exact.tenant_cache import Ledger, TenantCache

MARK_STRIDE_BYTES = 8192
"""Twice as many marks cost more than the steps they save: on average half a stride is walked in steps."""
HASH_BYTES = 48
"""Of one hash in a run: a 64-bit int (36) and its place in a list with growth room (12)."""
NODE_BYTES = 280
"""A node, its key, its last hash and its carry of half a block."""
RUN_BYTES = 150
LONG_STEP_BYTES = 2048
"""Steps this long are tried by their known length before the text is searched for its next added token."""
LONG_STEPS_MAX = 4
RUN_DEPTH_MAX = 8
"""Runs that refer to one another before their hashes are copied into one."""
BLOCKS_AT_ONCE = 512
"""Hashed between two yields of `PromptChains.work`: 0.8 ms."""
STEPS_AT_ONCE = 128
"""Steps taken between two yields: 0.8 ms."""

_END = b"\xff"
"""Marks the whole of a prompt; UTF-8 never contains it."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Who asks, under which salt and adapter: everything but the text that decides a block's hash."""

    tenant: TenantId
    salt: str
    adapter: Adapter | None = None
    before: tuple[int, ...] = ()
    """Token ids that the tokenizer puts in front of this kind of prompt (`add_special_tokens`)."""
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ExactPrefix:
    """A prompt as its worker will see it."""

    hashes: list[int]
    """Low 64 bits of each whole block's hash, as in KV events."""
    tokens: int
    """Length of the prompt in tokens, the tail shorter than a block included."""
    block_size: int
    """Tokens in a block."""

    @property
    def hittable_blocks(self) -> int:
        """A worker computes at least the last token: a prompt of exactly n blocks can hit n - 1."""
        return max(0, (self.tokens - 1) // self.block_size)


class _Run:
    """Hashes of consecutive blocks: `own` behind the first `base_blocks` of `base`. Tells the ledger what it holds."""

    __slots__ = ("base", "base_blocks", "depth", "ledger", "own", "size")

    def __init__(self, ledger: Ledger, base: _Run | None, base_blocks: int, own: list[int]) -> None:
        self.base = base
        self.base_blocks = base_blocks
        self.depth: int = 0 if base is None else base.depth + 1
        self.own = own
        self.ledger = ledger
        self.size = 0
        self.weigh()

    def __del__(self) -> None:
        self.ledger.add(-self.size)

    def weigh(self) -> None:
        size = RUN_BYTES + HASH_BYTES * len(self.own)
        self.ledger.add(size - self.size)
        self.size = size

    @property
    def blocks(self) -> int:
        return self.base_blocks + len(self.own)

    def take(self, blocks: int) -> list[int]:
        """The first `blocks` hashes, copied."""
        if self.base is None:
            return self.own[:blocks]
        if blocks <= self.base_blocks:
            return self.base.take(blocks)
        return self.base.take(self.base_blocks) + self.own[: blocks - self.base_blocks]


@dataclass(slots=True)
class _Node:
    key: bytes
    position: int
    """Bytes of text before it."""
    run: _Run
    blocks: int
    last: bytes
    """Full hash of the last whole block, or the hasher's root."""
    carry: TokenIds[int]
    """Ids behind the last whole block."""
    long_steps: tuple[int, ...] = ()
    """Byte lengths of long steps from here, the latest first."""


_Get = Callable[[int], _Node | None]
_Marks = list[tuple[int, int]]
"""(bytes, key of all text up to there) at every stride."""


@dataclass(slots=True)
class Reading:
    """A prompt under way: what is known of it, and which pieces have to be tokenised before the rest can be hashed."""

    scope: Scope
    text: bytes
    prefix: ExactPrefix | None
    """Set when all is known."""
    unknown: list[Piece]
    """Pieces whose `ids` the caller must fill in before `PromptChains.work` or `finish`."""
    trail: list[_Node]
    """Known nodes, from the last mark's to the deepest."""
    pieces: list[Piece]
    marks: _Marks
    whole: int

    @property
    def unknown_bytes(self) -> int:
        return sum(piece.end - piece.start for piece in self.unknown)

    @property
    def unhashed_bytes(self) -> int:
        """Text behind the deepest known node."""
        return 0 if self.prefix is not None else len(self.text) - self.trail[-1].position


class PromptChains:
    """Known prompts of one pool (one tokenizer, one block hasher). Single-threaded: the event loop's.

    `secret`: 32 bytes from the fleet key; digests made with it never leave the process.
    """

    def __init__(
        self,
        *,
        hasher: BlockHasher,
        cuts: Cuts,
        segments: SegmentCache,
        secret: bytes,
        bytes_max: int,
        tenant_share_max: float,
    ) -> None:
        self._hasher = hasher
        self._cuts = cuts
        self._segments = segments
        self._seed = int.from_bytes(secret[:8])
        self._secret = secret[8:]
        self._cache: TenantCache[_Node] = TenantCache(bytes_max=bytes_max, tenant_share_max=tenant_share_max)

    @property
    def bytes_used(self) -> int:
        return self._cache.bytes_used

    @property
    def block_size(self) -> int:
        return self._hasher.block_size

    def read(self, scope: Scope, text: bytes) -> Reading:
        """What is known of `text` (UTF-8). Neither tokenises nor hashes blocks: O(bytes) at memory speed."""
        stream, root_key = self._root(scope, b"text")
        marks, whole = _marks(stream, text)
        get = self._cache.shard(scope.tenant).get
        end = get(whole)
        if end is not None:
            return Reading(scope, text, self._prefix(end), [], [], [], marks, whole)
        trail = self._walk(get, text, _deepest(get, marks) or self._root_node(scope, root_key))
        pieces = list(self._cuts.split(text, trail[-1].position))
        unknown = self._segments.look_up(scope.tenant, text, pieces)
        return Reading(scope, text, None, unknown, trail, pieces, marks, whole)

    def finish(self, reading: Reading) -> ExactPrefix:
        """`work` in one go."""
        for _ in self.work(reading):
            pass
        assert reading.prefix is not None
        return reading.prefix

    def work(self, reading: Reading) -> Iterator[None]:
        """Hashes and remembers what was unseen, a bounded share between two yields; then `reading.prefix` is set.

        Other readings may go on in between: no node is known to them before its hashes are complete.
        """
        if reading.prefix is not None:
            return
        scope = reading.scope
        for piece in reading.unknown:
            self._segments.learn(scope.tenant, piece)
        node, trail = reading.trail[-1], list(reading.trail)
        ids: TokenIds[int] = array("I")
        for piece in reading.pieces:
            assert piece.ids is not None, "a piece was not tokenised"
            ids += piece.ids
            if piece.is_cut:
                key = self._step_key(node, reading.text, piece.end)
                child = yield from self._extend(scope, node, key.to_bytes(16), piece.end, ids)
                self._remember_step(scope, node, key, child)
                node, ids = child, array("I")
                trail.append(node)
                if not len(trail) % STEPS_AT_ONCE:
                    yield
        self._remember_marks(scope, reading.marks, trail)
        end = yield from self._extend(scope, node, b"", len(reading.text), ids + array("I", scope.after))
        self._remember(scope, reading.whole, end)
        reading.prefix = self._prefix(end)

    def work_ids(self, scope: Scope, ids: Sequence[int]) -> Generator[None, None, ExactPrefix]:
        """A prompt sent as token ids (each 0…2^32-1, else OverflowError): known heads are not hashed again.

        Yields between bounded shares, like `work`; `run_out` takes them in one go.
        """
        tokens = array("I", ids)
        text = tokens.tobytes()
        stream, root_key = self._root(scope, b"ids")
        marks, whole = _marks(stream, text)
        get = self._cache.shard(scope.tenant).get
        end = get(whole)
        if end is None:
            node = _deepest(get, marks) or self._root_node(scope, root_key)
            for position, key in [*(mark for mark in marks if mark[0] > node.position), (len(text), whole)]:
                span = tokens[node.position // 4 : position // 4]
                node = yield from self._extend(scope, node, b"", position, span)
                self._remember(scope, key, node)
                yield
            end = node
        return self._prefix(end)

    def _walk(self, get: _Get, text: bytes, node: _Node) -> list[_Node]:
        """Along known steps as far as they go: the nodes passed, `node` first."""
        trail = [node]
        while True:
            child = self._known_long_step(get, text, node) if node.long_steps else None
            if child is None:
                cut = self._cuts.next_cut(text, node.position)
                child = get(self._step_key(node, text, cut[1])) if cut is not None else None
            if child is None:
                return trail
            node = child
            trail.append(node)

    def _known_long_step(self, get: _Get, text: bytes, node: _Node) -> _Node | None:
        for length in node.long_steps:
            end = node.position + length
            if end <= len(text) and self._cuts.is_first_cut(text, node.position, end):
                child = get(self._step_key(node, text, end))
                if child is not None:
                    return child
        return None

    def _step_key(self, node: _Node, text: bytes, end: int) -> int:
        digest = xxhash.xxh3_128(node.key, seed=self._seed)
        digest.update(memoryview(text)[node.position : end])
        key: int = digest.intdigest()
        return key

    def _extend(
        self, scope: Scope, node: _Node, key: bytes, position: int, ids: TokenIds[int]
    ) -> Generator[None, None, _Node]:
        """The node `ids` further, at `position` of the text."""
        size = self._hasher.block_size
        tokens = node.carry + ids
        blocks = len(tokens) // size
        run, last = node.run, node.last
        if blocks:
            run = self._run_from(scope, node)
        for start in range(0, blocks * size, BLOCKS_AT_ONCE * size):
            if start:
                yield
            span = tokens[start : min(start + BLOCKS_AT_ONCE * size, blocks * size)]
            last = self._hasher.extend(last, span, run.own, salt=scope.salt, adapter=scope.adapter)
        run.weigh()
        return _Node(key, position, run, node.blocks + blocks, last, tokens[blocks * size :])

    def _run_from(self, scope: Scope, node: _Node) -> _Run:
        """The node's own run when the node is at its tip, else another that begins there."""
        run = node.run
        if run.blocks == node.blocks:
            return run
        ledger = self._cache.shard(scope.tenant).ledger
        if run.depth < RUN_DEPTH_MAX:
            return _Run(ledger, run, node.blocks, [])
        return _Run(ledger, None, 0, run.take(node.blocks))

    def _prefix(self, node: _Node) -> ExactPrefix:
        size = self._hasher.block_size
        return ExactPrefix(node.run.take(node.blocks), node.blocks * size + len(node.carry), size)

    def _remember(self, scope: Scope, key: int, node: _Node) -> None:
        self._cache.put(scope.tenant, key, node, NODE_BYTES)

    def _remember_step(self, scope: Scope, node: _Node, key: int, child: _Node) -> None:
        self._remember(scope, key, child)
        length = child.position - node.position
        if length >= LONG_STEP_BYTES:
            others = [known for known in node.long_steps if known != length]
            node.long_steps = (length, *others[: LONG_STEPS_MAX - 1])

    def _remember_marks(self, scope: Scope, marks: _Marks, trail: list[_Node]) -> None:
        """Each mark leads to the last node that no text behind the mark can undo: a longer added token might."""
        slack = self._cuts.token_bytes_max
        index = 0
        for position, key in marks:
            if position < trail[0].position + slack:
                continue
            while index + 1 < len(trail) and trail[index + 1].position + slack <= position:
                index += 1
            if trail[index].position:
                self._remember(scope, key, trail[index])

    def _root_node(self, scope: Scope, key: bytes) -> _Node:
        """Kept like any other node: it knows the long steps that prompts begin with."""
        shard, place = self._cache.shard(scope.tenant), int.from_bytes(key)
        node = shard.get(place)
        if node is None:
            run = _Run(shard.ledger, None, 0, [])
            node = _Node(key, 0, run, 0, self._hasher.root, array("I", scope.before))
            self._remember(scope, place, node)
        return node

    def _root(self, scope: Scope, kind: bytes) -> tuple[xxhash.xxh3_128, bytes]:
        adapter = scope.adapter
        names = ("", "") if adapter is None else (adapter.name, adapter.path)
        around = array("I", (len(scope.before), *scope.before, *scope.after)).tobytes()
        frame = framed(kind, scope.tenant, scope.salt, *names, around)
        root = hashlib.blake2b(frame, key=self._secret, digest_size=16).digest()
        return xxhash.xxh3_128(root, seed=self._seed), root


def _marks(stream: xxhash.xxh3_128, text: bytes) -> tuple[_Marks, int]:
    """The text's marks, and the key of the whole."""
    view, marks = memoryview(text), []
    update, digest = stream.update, stream.intdigest
    done = 0
    for end in range(MARK_STRIDE_BYTES, len(text) + 1, MARK_STRIDE_BYTES):
        update(view[done:end])
        marks.append((end, digest()))
        done = end
    update(view[done:])
    update(_END)
    return marks, digest()


def _deepest(get: _Get, marks: _Marks) -> _Node | None:
    for _, key in reversed(marks):
        node = get(key)
        if node is not None:
            return node
    return None


def run_out[T](work: Generator[None, None, T]) -> T:
    """The result of bounded shares, taken in one go."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
