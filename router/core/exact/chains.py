"""Block hashes of prompts seen before, found without tokenising or hashing what is known.

    prompt    ████████████████│███████│██████▒▒▒▒     ▒ unseen
    marks     ↑       ↑       ↑                       digest of all bytes up to every 8 or 32 KiB → node
    steps                     └──────→└─────→         (node or mark, next bytes up to an added token) → node
    whole     digest of all bytes → the prompt's end

A node stands behind an added token, where tokens never cross (`segments`): it knows the number of blocks before it, the
last full hash and the ids that do not fill a block yet. Hashes live in runs: a conversation that grows appends to its
run; a prompt that parts from another begins a run that refers to the first. A step that is longer than the distance of
two marks is also known from the last mark within it: whatever came before is in that mark's digest.

Cost of a known prompt: one XXH3 pass over its bytes, 0.6 µs a mark, 1.5 µs a step behind the last mark, and a copy
of the hashes; together 10 µs for 16k tokens and 40 for 128k, 35 and 60 where the prompt goes on behind what is known.
Memory: `HASH_BYTES` a block and about 450 bytes a step, bounded by tenant and in total. Every key contains the salt:
nothing is shared between namespaces, and what was under a rotated salt ages out.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import xxhash

from router.contract.ids import TenantId
from router.contract.secrets import framed
from router.core.exact.block_hashes import Adapter, BlockHasher, BlockHashes
from router.core.exact.segments import Cuts, Piece, SegmentCache, TokenIds
from router.core.exact.tenant_cache import Ledger, TenantCache

MARK_STRIDE_BYTES = 8192
"""Twice as many marks cost more than the steps they save: on average half a stride is walked in steps."""
FAR_BYTES = 128 * 1024
FAR_STRIDE_BYTES = 32 * 1024
"""From FAR_BYTES on, where marks would otherwise cost more than all else."""
HASH_BYTES = 9
"""Of one hash in a run: 8, and an eighth of room to grow."""
NODE_BYTES = 280
"""A node, its key, its last hash and its carry of half a block."""
MARK_BYTES = 400
"""A mark and the lengths of its steps; its node, which may have lost its own place in the cache, is counted again."""
ROOTS_MAX = 4096
"""Remembered scopes; about 1 KB each."""
RUN_BYTES = 150
LONG_STEP_BYTES = 2048
"""Steps this long are tried by their known length before the text is searched for its next added token. Above twice
the length of any added token, or they are not."""
LONG_STEPS_MAX = 4
RUN_DEPTH_MAX = 8
"""Runs that refer to one another before their hashes are copied into one."""
ANCHOR_REST_BYTES = 4096
"""An anchor's text behind its node: templates end a message with an added token, or a few bytes behind one."""
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

    hashes: BlockHashes[int]
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

    def __init__(self, ledger: Ledger, base: _Run | None, base_blocks: int, own: BlockHashes[int]) -> None:
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

    def take(self, blocks: int) -> BlockHashes[int]:
        """The first `blocks` hashes, copied."""
        if self.base is None:
            return self.own[:blocks]
        runs: list[_Run] = []
        run: _Run | None = self
        while run is not None:
            runs.append(run)
            run = run.base
        taken: BlockHashes[int] = array("Q")
        for at, run in enumerate(reversed(runs), 1):
            # A run counts as far as the one that refers to it says, the last one as far as is asked for.
            end = blocks if at == len(runs) else min(blocks, runs[-at - 1].base_blocks)
            if end > run.base_blocks:
                taken += run.own[: end - run.base_blocks] if end < run.blocks else run.own
        return taken


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
    """Byte lengths of long steps from here that pass no mark, the latest first."""


@dataclass(slots=True)
class _Mark:
    node: _Node
    """The last one before it that no text behind the mark can undo: a longer added token might."""
    long_steps: tuple[int, ...] = ()
    """Bytes from here to the ends of long steps whose last mark this is, the latest first."""


_Get = Callable[[int], object]
_Marks = list[tuple[int, int]]
"""(bytes, key of all text up to there) at every stride."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """A place in a prompt from which others that begin alike are read."""

    node: _Node
    """The last one before the place."""
    before: bytes
    """Text in front of the node, back to the node before it or as far as a longer added token could reach."""
    rest: bytes
    """Text from the node to the place."""


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
    """Known nodes, from the last mark's to the deepest; once all is known, every node behind that mark's."""
    pieces: list[Piece]
    marks: _Marks
    marks_known: int
    """Leading marks that need not be remembered."""
    whole: int | None
    """Key of the whole prompt; None where only its end was read."""
    start: int = 0
    """Bytes of the prompt before `text`."""

    @property
    def unknown_bytes(self) -> int:
        return sum(piece.end - piece.start for piece in self.unknown)

    @property
    def unhashed_bytes(self) -> int:
        """Text behind the deepest known node."""
        return 0 if self.prefix is not None else self.start + len(self.text) - self.trail[-1].position


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
        self.cache: TenantCache[object] = TenantCache(bytes_max=bytes_max, tenant_share_max=tenant_share_max)
        """Nodes and marks, and what else is known by a digest of the same secret."""
        self._roots: dict[tuple[bytes, Scope], tuple[xxhash.xxh3_128, bytes]] = {}
        self._long_step = max(LONG_STEP_BYTES, 2 * cuts.token_bytes_max)

    @property
    def bytes_used(self) -> int:
        return self.cache.bytes_used

    @property
    def block_size(self) -> int:
        return self._hasher.block_size

    def read(self, scope: Scope, text: bytes) -> Reading:
        """What is known of `text` (UTF-8). Neither tokenises nor hashes blocks: O(bytes) at memory speed."""
        stream, root_key = self.root(scope, b"text")
        marks, whole = _marks(stream, text)
        get = self.cache.shard(scope.tenant).get
        end = get(whole)
        if isinstance(end, _Node):
            return Reading(scope, text, self._prefix(end), [], [], [], marks, len(marks), whole)
        known, mark = _deepest(get, marks)
        if mark is None:
            trail = [self._root_node(scope, root_key)]
        else:
            trail = [mark.node]
            child = self._known_step(get, text, marks[known - 1], mark.long_steps)
            if child is not None:
                trail.append(child)
        self._walk(get, text, 0, trail)
        pieces = list(self._cuts.split(text, trail[-1].position))
        unknown = self._segments.look_up(scope.tenant, text, pieces)
        return Reading(scope, text, None, unknown, trail, pieces, marks, known, whole)

    def anchor(self, reading: Reading, position: int) -> Anchor | None:
        """The place `position` bytes into a prompt that is wholly known; None where no node of it is shortly before."""
        trail = reading.trail
        place = bisect_right(trail, position, key=_position) - 1
        if place < 1 or position - trail[place].position > ANCHOR_REST_BYTES:
            return None
        parent, node, start = trail[place - 1], trail[place], reading.start
        at = node.position - start
        before = reading.text[max(parent.position - start, at - 2 * self._cuts.token_bytes_max) : at]
        return Anchor(node, before, reading.text[at : position - start])

    def read_on(self, scope: Scope, anchor: Anchor, text: bytes) -> Reading | None:
        """As `read`, of the prompt up to the anchor and `text` behind it. None where that changes the tokens before."""
        node, before = anchor.node, anchor.before
        text = b"".join((before, anchor.rest, text))
        if not self._cuts.is_first_cut(text, 0, len(before)):
            return None
        start = node.position - len(before)
        trail = [node]
        self._walk(self.cache.shard(scope.tenant).get, text, start, trail)
        pieces = list(self._cuts.split(text, trail[-1].position - start))
        unknown = self._segments.look_up(scope.tenant, text, pieces)
        return Reading(scope, text, None, unknown, trail, pieces, [], 0, None, start)

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
        start, node, trail, marked = reading.start, reading.trail[-1], list(reading.trail), dict[int, _Node]()
        ids: TokenIds[int] = array("I")
        for piece in reading.pieces:
            assert piece.ids is not None, "a piece was not tokenised"
            ids += piece.ids
            if piece.is_cut:
                key = self._step_key(node, reading.text, start, piece.end)
                child = yield from self._extend(scope, node, key.to_bytes(16), start + piece.end, ids)
                self._remember_step(scope, node, key, child, marked)
                node, ids = child, array("I")
                trail.append(node)
                if not len(trail) % STEPS_AT_ONCE:
                    yield
        self._remember_marks(reading, trail, marked)
        end = yield from self._extend(scope, node, b"", start + len(reading.text), ids + array("I", scope.after))
        if reading.whole is not None:
            self._remember(scope, reading.whole, end)
        reading.trail = trail
        reading.prefix = self._prefix(end)

    def work_ids(self, scope: Scope, ids: Sequence[int]) -> Generator[None, None, ExactPrefix]:
        """A prompt sent as token ids (each 0…2^32-1, else OverflowError): known heads are not hashed again.

        Yields between bounded shares, like `work`; `run_out` takes them in one go.
        """
        tokens = array("I", ids)
        text = tokens.tobytes()
        stream, root_key = self.root(scope, b"ids")
        marks, whole = _marks(stream, text)
        get = self.cache.shard(scope.tenant).get
        end = get(whole)
        if not isinstance(end, _Node):
            mark = _deepest(get, marks)[1]
            node = self._root_node(scope, root_key) if mark is None else mark.node
            for position, key in [*(mark for mark in marks if mark[0] > node.position), (len(text), whole)]:
                span = tokens[node.position // 4 : position // 4]
                node = yield from self._extend(scope, node, b"", position, span)
                if key == whole:
                    self._remember(scope, key, node)
                else:
                    self.cache.put(scope.tenant, key, _Mark(node), MARK_BYTES)
                yield
            end = node
        return self._prefix(end)

    def _walk(self, get: _Get, text: bytes, start: int, trail: list[_Node]) -> None:
        """Along known steps as far as they go: adds the nodes passed. `start`: bytes of the prompt before `text`."""
        while True:
            node = trail[-1]
            child = None
            if node.long_steps:
                place = (node.position - start, int.from_bytes(node.key))
                child = self._known_step(get, text, place, node.long_steps)
            if child is None:
                cut = self._cuts.next_cut(text, node.position - start)
                found = None if cut is None else get(self._step_key(node, text, start, cut[1]))
                child = found if isinstance(found, _Node) else None
            if child is None:
                return
            trail.append(child)

    def _known_step(self, get: _Get, text: bytes, start: tuple[int, int], lengths: tuple[int, ...]) -> _Node | None:
        """The end of a known long step from a node or a mark: (its bytes, its key)."""
        position, key = start
        for length in lengths:
            end = position + length
            if end <= len(text) and self._cuts.is_first_cut(text, 0, end):
                child = get(xxhash.xxh3_128_intdigest(memoryview(text)[position:end], key))
                if isinstance(child, _Node):
                    return child
        return None

    def _step_key(self, node: _Node, text: bytes, start: int, end: int) -> int:
        # A seed is taken modulo 2^64; keys are secret digests themselves.
        key: int = xxhash.xxh3_128_intdigest(memoryview(text)[node.position - start : end], int.from_bytes(node.key))
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
        ledger = self.cache.shard(scope.tenant).ledger
        if run.depth < RUN_DEPTH_MAX:
            return _Run(ledger, run, node.blocks, array("Q"))
        return _Run(ledger, None, 0, run.take(node.blocks))

    def _prefix(self, node: _Node) -> ExactPrefix:
        size = self._hasher.block_size
        return ExactPrefix(node.run.take(node.blocks), node.blocks * size + len(node.carry), size)

    def _remember(self, scope: Scope, key: int, node: _Node) -> None:
        self.cache.put(scope.tenant, key, node, NODE_BYTES)

    def _remember_step(self, scope: Scope, node: _Node, key: int, child: _Node, marked: dict[int, _Node]) -> None:
        """A long step is left in `marked`, by the last mark within it, where there is one."""
        self._remember(scope, key, child)
        length = child.position - node.position
        if length > self._long_step:
            place = _last_mark(child.position - 1)
            if place > node.position:
                marked[place] = child
            else:
                node.long_steps = _latest(length, node.long_steps)

    def _remember_marks(self, reading: Reading, trail: list[_Node], marked: dict[int, _Node]) -> None:
        scope, text, slack = reading.scope, reading.text, self._cuts.token_bytes_max
        index = 0
        for number, (position, key) in enumerate(reading.marks):
            child = marked.get(position)
            if child is None and number < reading.marks_known:
                continue
            while index + 1 < len(trail) and trail[index + 1].position + slack <= position:
                index += 1
            mark, node = self.cache.shard(scope.tenant).get(key), trail[index]
            if not isinstance(mark, _Mark):
                if (child is None and not node.position) or (node.position and node.position + slack > position):
                    continue
                mark = _Mark(node)
                self.cache.put(scope.tenant, key, mark, MARK_BYTES)
            if child is not None:
                end = child.position
                self._remember(scope, xxhash.xxh3_128_intdigest(memoryview(text)[position:end], key), child)
                mark.long_steps = _latest(end - position, mark.long_steps)

    def _root_node(self, scope: Scope, key: bytes) -> _Node:
        """Kept like any other node: it knows the long steps that prompts begin with."""
        shard, place = self.cache.shard(scope.tenant), int.from_bytes(key)
        node = shard.get(place)
        if not isinstance(node, _Node):
            run = _Run(shard.ledger, None, 0, array("Q"))
            node = _Node(key, 0, run, 0, self._hasher.root, array("I", scope.before))
            self._remember(scope, place, node)
        return node

    def root(self, scope: Scope, kind: bytes) -> tuple[xxhash.xxh3_128, bytes]:
        """(secret stream to go on with, its key: 16 bytes) of one scope and kind of bytes."""
        root = self._roots.get((kind, scope))
        if root is None:
            if len(self._roots) >= ROOTS_MAX:
                self._roots.clear()
            root = self._roots[kind, scope] = self._new_root(scope, kind)
        return root[0].copy(), root[1]

    def _new_root(self, scope: Scope, kind: bytes) -> tuple[xxhash.xxh3_128, bytes]:
        adapter = scope.adapter
        names = ("", "") if adapter is None else (adapter.name, adapter.path)
        around = array("I", (len(scope.before), *scope.before, *scope.after)).tobytes()
        frame = framed(kind, scope.tenant, scope.salt, *names, around)
        key = hashlib.blake2b(frame, key=self._secret, digest_size=16).digest()
        return xxhash.xxh3_128(key, seed=self._seed), key


def _marks(stream: xxhash.xxh3_128, text: bytes) -> tuple[_Marks, int]:
    """The text's marks, and the key of the whole."""
    view, marks = memoryview(text), []
    update, digest = stream.update, stream.intdigest
    done = 0
    near = range(MARK_STRIDE_BYTES, min(len(text), FAR_BYTES) + 1, MARK_STRIDE_BYTES)
    far = range(FAR_BYTES + FAR_STRIDE_BYTES, len(text) + 1, FAR_STRIDE_BYTES)
    for end in chain(near, far):
        update(view[done:end])
        marks.append((end, digest()))
        done = end
    update(view[done:])
    update(_END)
    return marks, digest()


def _position(node: _Node) -> int:
    return node.position


def _last_mark(position: int) -> int:
    """The last place of a mark at or before `position`, 0 for none."""
    stride = MARK_STRIDE_BYTES if position < FAR_BYTES + FAR_STRIDE_BYTES else FAR_STRIDE_BYTES
    return min(position // stride * stride, FAR_BYTES if stride == MARK_STRIDE_BYTES else position)


def _latest(length: int, lengths: tuple[int, ...]) -> tuple[int, ...]:
    return (length, *[known for known in lengths if known != length][: LONG_STEPS_MAX - 1])


def _deepest(get: _Get, marks: _Marks) -> tuple[int, _Mark | None]:
    """(number of marks up to the deepest known one, that one)."""
    for number in range(len(marks), 0, -1):
        mark = get(marks[number - 1][1])
        if isinstance(mark, _Mark):
            return number, mark
    return 0, None


def run_out[T](work: Generator[None, None, T]) -> T:
    """The result of bounded shares, taken in one go."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
