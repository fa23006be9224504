"""Isolation bound (S8): the most cached tokens that a namespace's own history on a worker allows.

A worker's cache under one salt holds only what this namespace sent there and what the worker generated in reply. For
an answer, let m be the leading blocks of its prompt that were sent to that worker before the worker began it. Then

    cached tokens ≤ 0                                    when nothing was ever sent there under this generation
    cached tokens ≤ (m + 1) × block bytes − 1 + template when it parts from history inside an earlier prompt:
                                                         each token covers at least one byte, and the chat template
                                                         adds at most `template_tokens_max` that the text lacks
    cached tokens ≤ P + C of an earlier request          when it runs through the whole of that request's prompt and
                                                         on into its reply (P prompt and C completion tokens)

and the bound is the greatest of these, P + C over all earlier requests whose last block lies on the prompt's own
path, and over those without a whole block. Requests under way count: their P + C is not known, so an answer that only
they could explain is `unknown`. Overlaps with requests that start before the answer's first byte ("rivals", which
may fill the cache first) raise m.

Two prompts that the worker renders to the same tokens must have the same canonical text, or their common prefix is
underrated: whoever makes that text keeps this (for example: equal tools in another JSON spelling, trimmed blanks).
Where it cannot be kept, because prompts came in several forms (chat, raw text, token ids; behind several heads of tools
or other settings that a template may leave out) or with media, what lies above the byte bound is `unknown`.

An exact prompt's hits need no more explanation than the worker's own events: their block hashes chain from this
namespace's salt, so whoever tells of one computed it under that salt. It covers templates that leave out what the text
has, such as tools. A worker that ignores salts tells of other hashes and is left to the history.

Namespaces that share a cache domain have one history together: they are told apart by nothing here.

A violation is claimed only while history is complete: see `history_complete`. Costs: `begin` O(1) beside the index,
`first_byte` O(rivals that begin as an earlier request did), `assess` O(1), and O(m) for the rare answer above the
byte bound. Memory: O(namespaces × workers in use), bounded.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from router.contract.ids import TenantId, WorkerId
from router.core.fingerprint import common_blocks
from router.core.index import PrefixIndex
from router.core.model import Fingerprint, Grant, Outcome, Reservation

CLOCK_SKEW_S: Final = 1.0
"""Start times of caches and generations come from other machines' clocks: they must be this much later to count."""

FORMS_KEPT_MAX: Final = 2

RecordKey = tuple[str, int, str, WorkerId]
"""Cache domain, generation, generation nonce, worker."""


@dataclass(slots=True, eq=False)
class Record:
    """What one generation of a namespace sent to one worker, beyond the blocks in the index."""

    models: set[str] = field(default_factory=set)
    forms: set[str] = field(default_factory=set)
    """At most FORMS_KEPT_MAX: from the second on it is known that there were several."""
    has_media: bool = False
    requests: int = 0
    loose_tokens: int | None = 0
    """The most P + C of answered requests without a whole block; None when one ended without saying."""
    loose_under_way: int = 0
    waiting: int = 0
    """Requests without a first byte."""
    sharing: list[tuple[int, list[int]]] = field(default_factory=list)
    """Number and chain of the requests that began while others waited, and as an earlier one did."""
    dropped: bool = False
    """For want of room: another record may have taken its place."""


class Verdict:
    __slots__ = ("bound_tokens", "evidence", "isolation")

    def __init__(self, isolation: str, bound_tokens: int | None = None, evidence: str = "") -> None:
        self.isolation: Final = isolation
        """`ok`, `violation`, `unknown` or "" (nothing to check)."""
        self.bound_tokens: Final = bound_tokens
        self.evidence: Final = evidence
        """Of a violation: a keyed hash of the prompt's blocks, equal for equal prompts of one namespace generation."""


NOTHING_TO_CHECK: Final = Verdict("")


class HistoryBook:
    def __init__(
        self,
        *,
        index: PrefixIndex,
        evidence_key: bytes,
        histories_max: int,
        rivals_max: int,
        template_tokens_max: int,
    ) -> None:
        self._index = index
        self._evidence_key = evidence_key
        self._histories_max = histories_max
        self._rivals_max = rivals_max
        self._template_tokens_max = template_tokens_max
        self._records: OrderedDict[RecordKey, Record] = OrderedDict()
        self._leaves_under_way: dict[int, int] = {}
        self._unknown_leaves: dict[int, None] = {}
        self.forgotten_at: float | None = None
        """When a record was last dropped for want of room."""
        self.leaves_forgotten_at: float | None = None

    def begin(self, reservation: Reservation, *, now: float) -> None:
        """Note a request before its chain enters the index; sets the reservation's history fields."""
        request, worker = reservation.decision.request, reservation.decision.worker
        grant = request.grant
        record = self._record(grant, worker, now)
        hashes = _hashes(request.fingerprint)
        number = record.requests
        depth = self._index.history_depth(grant.owner, hashes, worker) if hashes else 0
        reservation.history = record
        reservation.history_requests, reservation.history_blocks = number, depth
        record.requests = number + 1
        record.waiting += 1
        record.models.add(grant.model)
        if len(record.forms) < FORMS_KEPT_MAX:
            record.forms.add(request.form)
        record.has_media = record.has_media or request.form.startswith("media")
        if depth and record.waiting > 1:
            # Whoever shares a block with one that waits was found in the index, where that one's chain is.
            record.sharing.append((number, hashes))
            if len(record.sharing) >= 2 * self._rivals_max:
                del record.sharing[: self._rivals_max]
        if hashes:
            self._leaves_under_way[hashes[-1]] = self._leaves_under_way.get(hashes[-1], 0) + 1
        else:
            record.loose_under_way += 1

    def first_byte(self, reservation: Reservation) -> None:
        """The worker has looked its cache up: later requests cannot have filled it for this one. Call it once."""
        record = reservation.history
        if record is None:
            return
        record.waiting -= 1
        rivals = record.requests - reservation.history_requests - 1
        if rivals:
            if rivals > self._rivals_max:
                reservation.crowded = True
            elif record.sharing:
                _meet_rivals(record, reservation)
            reservation.history_requests += rivals
        if not record.waiting:
            record.sharing.clear()

    def assess(self, reservation: Reservation, outcome: Outcome, complete: Callable[[Reservation], bool]) -> Verdict:
        """Judge an answer; call it after `first_byte` and before `end`. `complete`: whether history is whole, asked
        only for an answer above the bound."""
        cached = outcome.cached_tokens
        if cached is None:
            return NOTHING_TO_CHECK
        bound = self._bound(reservation, cached)
        if bound is None:
            return Verdict("ok" if cached == 0 else "unknown")
        if cached <= bound:
            return Verdict("ok", bound)
        told = _told_tokens(reservation)
        if cached <= told:
            return Verdict("ok", told)
        if reservation.crowded or not complete(reservation):
            return Verdict("unknown", bound)
        return Verdict("violation", bound, self.evidence(reservation))

    def end(self, reservation: Reservation, outcome: Outcome, *, now: float) -> None:
        """The request is over, its P + C known or not."""
        request = reservation.decision.request
        prompt, completion = outcome.prompt_tokens, outcome.completion_tokens
        total = None if prompt is None or completion is None else prompt + completion
        hashes = _hashes(request.fingerprint)
        if hashes:
            self._end_leaf(request.grant.owner, hashes, total, now)
            return
        record = reservation.history
        if record is not None:
            record.loose_under_way = max(0, record.loose_under_way - 1)
            known = total is not None and record.loose_tokens is not None
            record.loose_tokens = max(record.loose_tokens or 0, total or 0) if known else None

    def _bound(self, reservation: Reservation, cached: int) -> int | None:
        """The bound, None where it is not known. Refined only for answers above the cheap part."""
        record = reservation.history
        fingerprint = reservation.decision.request.fingerprint
        if record is None or record.dropped or fingerprint is None:
            # Without text, for example in a list of prompts, one part may have filled the cache for another.
            return None
        if reservation.history_requests == 0 and reservation.history_blocks == 0:
            return 0
        blocks = reservation.history_blocks
        covered = fingerprint.text_bytes
        if blocks < len(fingerprint.hashes):
            covered = (blocks + 1) * fingerprint.block_bytes - 1
        bound = covered + self._template_tokens_max
        if cached <= bound:
            return bound
        if len(record.forms) > 1 or record.has_media:
            # Another form may have filled the cache with the same tokens; media has tokens that no byte stands for.
            return None
        own_loose = 0 if fingerprint.hashes else 1
        if len(record.models) > 1 or record.loose_tokens is None or record.loose_under_way > own_loose:
            return None
        replies = self._reply_bound(reservation, fingerprint.hashes[:blocks])
        return None if replies is None else max(bound, record.loose_tokens, replies)

    def evidence(self, reservation: Reservation) -> str:
        """Keyed hash of the prompt's blocks. Block hashes stay inside the process (S5): their hash leaves it."""
        chain = _hashes(reservation.decision.request.fingerprint)
        last = (chain[-1] if chain else 0).to_bytes(16, "big")
        return hashlib.blake2b(last, digest_size=16, key=self._evidence_key).hexdigest()

    def _reply_bound(self, reservation: Reservation, path: list[int]) -> int | None:
        """The most P + C of requests that ended on the path; None when one of them is under way or never said."""
        owner = reservation.decision.request.grant.owner
        own_leaf = _hashes(reservation.decision.request.fingerprint)[-1:]
        for block in path:
            under_way = self._leaves_under_way.get(block, 0) - (1 if [block] == own_leaf else 0)
            if under_way > 0 or block in self._unknown_leaves:
                return None
        return self._index.leaf_tokens(owner, path)

    def _end_leaf(self, owner: TenantId, hashes: list[int], total: int | None, now: float) -> None:
        leaf = hashes[-1]
        under_way = self._leaves_under_way.pop(leaf, 0)
        if under_way > 1:
            self._leaves_under_way[leaf] = under_way - 1
        if total is not None:
            self._index.note_leaf(owner, hashes, total)
            return
        self._unknown_leaves[leaf] = None
        if len(self._unknown_leaves) > self._histories_max:
            del self._unknown_leaves[next(iter(self._unknown_leaves))]
            self.leaves_forgotten_at = now

    def _record(self, grant: Grant, worker: WorkerId, now: float) -> Record:
        policy = grant.policy
        key = (grant.cache, policy.generation, policy.generation_nonce, worker)
        record = self._records.get(key)
        if record is None:
            if len(self._records) >= self._histories_max:
                _, oldest = self._records.popitem(last=False)
                oldest.dropped = True
                self.forgotten_at = now
            record = self._records[key] = Record()
        else:
            self._records.move_to_end(key)
        return record


def _meet_rivals(record: Record, reservation: Reservation) -> None:
    """Raise a request's history by what it shares with those that began after it and before its first byte.

    Chains that are equal in one place are equal up to it, so most rivals are told by the first block beyond history.
    """
    hashes = _hashes(reservation.decision.request.fingerprint)
    blocks, number = reservation.history_blocks, reservation.history_requests
    for rival, chain in record.sharing:
        if blocks == len(hashes):
            break
        if rival > number and len(chain) > blocks and chain[blocks] == hashes[blocks]:
            blocks = common_blocks(chain, hashes)
    reservation.history_blocks = blocks


def history_complete(*, began_at: float | None, lost_at: list[float | None], other_routers: int | None) -> bool:
    """Whether all that a cache holds of a namespace passed through this router and is still known here.

    `began_at`: when the cache or the generation began, whichever is later, None if unknown. `lost_at`: moments up to
    which something may have been missed (boot, worker joined, eviction, other routers alive), None = never.
    """
    if began_at is None or other_routers is None or other_routers > 0:
        return False
    return all(lost is None or began_at >= lost + CLOCK_SKEW_S for lost in lost_at)


def _told_tokens(reservation: Reservation) -> int:
    """What the worker itself told that it holds of an exact prompt, 0 where it cannot tell."""
    decision = reservation.decision
    exact = decision.request.exact
    if exact is None or decision.source is not None or decision.worker in exact.unknown:
        return 0  # nobody told, or another worker did
    held = exact.matches.get(decision.worker)
    return 0 if held is None else held.told_tokens


def _hashes(fingerprint: Fingerprint | None) -> list[int]:
    return [] if fingerprint is None else fingerprint.hashes
