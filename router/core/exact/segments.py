"""Where a prompt's text may be cut so that each piece tokenises alone, and known pieces' token ids.

A Hugging Face tokenizer first takes out its added tokens, leftmost and of those the longest, and then normalises and
tokenises each stretch between them by itself. So

    ids(text) = ids(piece) + [token] + ids(piece) + [token] + …

holds for added tokens that are matched in the raw text and eat no neighbours (`cut_tokens` of the tokenizer's adapter
says which, and whether the stretch's tokenisation depends on its position). A client's text that spells such a token
becomes the token here because it does so on the worker.

Known pieces: secret digest of (tenant, tokenizer, text) → ids at 4 bytes each. The tenant is in the key: how long a
request takes tells nobody what other tenants sent.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import xxhash

from router.contract.ids import TenantId
from router.core.exact.tenant_cache import TenantCache

TokenIds = array
"""`array("I")`: 4 bytes an id."""
CUTS_MAX = 16_384
"""Of one reading: a text made of added tokens cannot hold the event loop (10 ms). Conversations have hundreds."""
ARRAY_BYTES = 80
"""Of an empty array object."""


@dataclass(slots=True)
class Piece:
    """A stretch of the text's UTF-8 bytes: one added token, or text between two of them."""

    start: int
    end: int
    ids: TokenIds[int] | None
    """None until it has been tokenised."""
    is_cut: bool = False
    """Whether it is an added token."""
    key: int = 0
    """Of text: its key among the known pieces."""


class Cuts:
    """The added tokens at which a text is cut. Without any, a text is one piece."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        ids = {token.encode(): number for token, number in tokens.items() if token}
        self._ids = {token: array("I", (number,)) for token, number in ids.items()}
        longest_first = sorted(ids, key=lambda token: (-len(token), token))
        # Alternatives are tried in order at each position: leftmost, and of those the longest.
        self._pattern = re.compile(b"|".join(map(re.escape, longest_first))) if ids else None
        self.token_bytes_max = max(map(len, ids), default=0)

    def next_cut(self, text: bytes, position: int) -> tuple[int, int] | None:
        """(start, end) of the first added token at or after `position`."""
        found = self._pattern.search(text, position) if self._pattern is not None else None
        return None if found is None else found.span()

    def is_first_cut(self, text: bytes, position: int, end: int) -> bool:
        """Whether the first cut after `position` ends at `end`, given that this held in another text with these bytes.

        What may differ is the bytes from `end` on: a longer token, or one that begins where this text goes on.
        """
        cut = self.next_cut(text, max(position, end - 2 * self.token_bytes_max))
        return cut is not None and cut[1] == end

    def split(self, text: bytes, position: int) -> Iterator[Piece]:
        """Pieces from `position` (a cut, or the start) to the end of the text, in order, none empty.

        Behind CUTS_MAX cuts the rest is one piece: the tokenizer finds the added tokens in it by itself.
        """
        ids = self._ids
        found_cuts = self._pattern.finditer(text, position) if self._pattern is not None else ()
        for found in islice(found_cuts, CUTS_MAX):
            start, end = found.span()
            if start > position:
                yield Piece(position, start, None)
            yield Piece(start, end, ids[found[0]], is_cut=True)
            position = end
        if position < len(text):
            yield Piece(position, len(text), None)


class SegmentCache:
    """Token ids of known pieces, for one tokenizer. `secret` is 16 bytes or more; it never leaves the process."""

    def __init__(self, *, secret: bytes, bytes_max: int, tenant_share_max: float) -> None:
        self._seed = int.from_bytes(secret[:8])
        self._cache: TenantCache[TokenIds[int]] = TenantCache(bytes_max=bytes_max, tenant_share_max=tenant_share_max)
        self._secret = secret[8:]

    @property
    def bytes_used(self) -> int:
        return self._cache.bytes_used

    def look_up(self, tenant: TenantId, text: bytes, pieces: list[Piece]) -> list[Piece]:
        """Fills in the ids of known pieces; returns those still unknown, each with its key."""
        get = self._cache.shard(tenant).get
        frame = self._frame(tenant)
        view = memoryview(text)
        unknown = []
        for piece in pieces:
            if piece.ids is None:
                digest = frame.copy()
                digest.update(view[piece.start : piece.end])
                piece.key = digest.intdigest()
                piece.ids = get(piece.key)
                if piece.ids is None:
                    unknown.append(piece)
        return unknown

    def learn(self, tenant: TenantId, piece: Piece) -> None:
        assert piece.ids is not None
        self._cache.put(tenant, piece.key, piece.ids, ARRAY_BYTES + 4 * len(piece.ids))

    def _frame(self, tenant: TenantId) -> xxhash.xxh3_128:
        name = tenant.encode()
        return xxhash.xxh3_128(self._secret + len(name).to_bytes(4) + name, seed=self._seed)
