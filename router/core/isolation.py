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
Where it cannot be kept, because prompts came in several forms (chat, raw text, token ids) or with media, what lies
above the byte bound is `unknown`.

A violation is claimed only while history is complete: see `history_complete`. Costs: `begin` O(rivals · log blocks),
`assess` O(1), and O(m) for the rare answer above the byte bound. Memory: O(namespaces × workers in use), bounded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from router.contract.ids import NamespaceId, TenantId, WorkerId
from router.core.fingerprint import common_blocks
from router.core.index import PrefixIndex
from router.core.model import Fingerprint, Outcome, Reservation

CLOCK_SKEW_S = 1.0
"""Start times of caches and generations come from other machines' clocks: they must be this much later to count."""

RecordKey = tuple[NamespaceId, int, str, WorkerId]
"""Namespace, generation, generation nonce, worker."""


@dataclass(slots=True, eq=False)
class _Record:
    """What one generation of a namespace sent to one worker, beyond the blocks in the index."""

    models: set[str] = field(default_factory=set)
    forms: set[str] = field(default_factory=set)
    requests: int = 0
    loose_tokens: int | None = 0
    """The most P + C of answered requests without a whole block; None when one ended without saying."""
    loose_under_way: int = 0
    waiting: dict[int, Reservation] = field(default_factory=dict)
    """Reservations without a first byte, by identity."""


@dataclass(frozen=True, slots=True)
class Verdict:
    isolation: str
    """`ok`, `violation`, `unknown` or "" (nothing to check)."""
    bound_tokens: int | None = None


class HistoryBook:
    def __init__(self, *, index: PrefixIndex, histories_max: int, rivals_max: int, template_tokens_max: int) -> None:
        self._index = index
        self._histories_max = histories_max
        self._rivals_max = rivals_max
        self._template_tokens_max = template_tokens_max
        self._records: dict[RecordKey, _Record] = {}
        self._leaves_under_way: dict[int, int] = {}
        self._unknown_leaves: dict[int, None] = {}
        self.forgotten_at: float | None = None
        """When a record was last dropped for want of room."""
        self.leaves_forgotten_at: float | None = None

    def begin(self, reservation: Reservation, *, now: float) -> None:
        """Note a request before its chain enters the index; sets the reservation's history fields."""
        record = self._record(reservation, now)
        request = reservation.decision.request
        hashes = _hashes(request.fingerprint)
        reservation.history_requests = record.requests
        reservation.history_blocks = self._index.history_depth(
            request.grant.tenant, hashes, reservation.decision.worker
        )
        record.requests += 1
        record.models.add(request.grant.model)
        record.forms.add(request.form)
        self._meet_rivals(record, reservation, hashes)
        if hashes:
            self._leaves_under_way[hashes[-1]] = self._leaves_under_way.get(hashes[-1], 0) + 1
        else:
            record.loose_under_way += 1

    def first_byte(self, reservation: Reservation) -> None:
        """The worker has looked its cache up: later requests cannot have filled it for this one."""
        record = self._records.get(_key(reservation))
        if record is not None:
            record.waiting.pop(id(reservation), None)

    def assess(self, reservation: Reservation, outcome: Outcome, *, complete: bool) -> Verdict:
        """Judge an answer; call before `end`. `complete`: whether history is known to be whole."""
        cached = outcome.cached_tokens
        if cached is None:
            return Verdict("")
        bound = self._bound(reservation, cached)
        if bound is None:
            return Verdict("ok" if cached == 0 else "unknown")
        if cached <= bound:
            return Verdict("ok", bound)
        return Verdict("violation" if complete and not reservation.crowded else "unknown", bound)

    def end(self, reservation: Reservation, outcome: Outcome, *, now: float) -> None:
        """The request is over, its P + C known or not."""
        self.first_byte(reservation)
        request = reservation.decision.request
        hashes = _hashes(request.fingerprint)
        total = _total_tokens(outcome)
        if hashes:
            self._end_leaf(request.grant.tenant, hashes[-1], total, now)
            return
        record = self._records.get(_key(reservation))
        if record is not None:
            record.loose_under_way = max(0, record.loose_under_way - 1)
            known = total is not None and record.loose_tokens is not None
            record.loose_tokens = max(record.loose_tokens or 0, total or 0) if known else None

    def _bound(self, reservation: Reservation, cached: int) -> int | None:
        """The bound, None where it is not known. Refined only for answers above the cheap part."""
        record = self._records.get(_key(reservation))
        fingerprint = reservation.decision.request.fingerprint
        if record is None or fingerprint is None:
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
        if len(record.forms) > 1 or "media" in record.forms:
            # Another form may have filled the cache with the same tokens; media has tokens that no byte stands for.
            return None
        own_loose = 0 if fingerprint.hashes else 1
        if len(record.models) > 1 or record.loose_tokens is None or record.loose_under_way > own_loose:
            return None
        replies = self._reply_bound(reservation, fingerprint.hashes[:blocks])
        return None if replies is None else max(bound, record.loose_tokens, replies)

    def _reply_bound(self, reservation: Reservation, path: list[int]) -> int | None:
        """The most P + C of requests that ended on the path; None when one of them is under way or never said."""
        tenant = reservation.decision.request.grant.tenant
        own_leaf = _hashes(reservation.decision.request.fingerprint)[-1:]
        most = 0
        for block in path:
            under_way = self._leaves_under_way.get(block, 0) - (1 if [block] == own_leaf else 0)
            if under_way > 0 or block in self._unknown_leaves:
                return None
            most = max(most, self._index.leaf_tokens(tenant, block))
        return most

    def _meet_rivals(self, record: _Record, reservation: Reservation, hashes: list[int]) -> None:
        """Raise the history of requests that wait on the same worker by what this one shares with them."""
        if len(record.waiting) >= self._rivals_max:
            reservation.crowded = True
            for rival in record.waiting.values():
                rival.crowded = True
            return
        for rival in record.waiting.values():
            shared = common_blocks(_hashes(rival.decision.request.fingerprint), hashes)
            rival.history_blocks = max(rival.history_blocks, shared)
            rival.history_requests += 1
        record.waiting[id(reservation)] = reservation

    def _end_leaf(self, tenant: TenantId, leaf: int, total: int | None, now: float) -> None:
        under_way = self._leaves_under_way.get(leaf, 0) - 1
        if under_way > 0:
            self._leaves_under_way[leaf] = under_way
        else:
            self._leaves_under_way.pop(leaf, None)
        if total is not None:
            self._index.note_leaf(tenant, leaf, total)
            return
        self._unknown_leaves[leaf] = None
        if len(self._unknown_leaves) > self._histories_max:
            del self._unknown_leaves[next(iter(self._unknown_leaves))]
            self.leaves_forgotten_at = now

    def _record(self, reservation: Reservation, now: float) -> _Record:
        key = _key(reservation)
        record = self._records.pop(key, None)
        if record is None:
            record = _Record()
            if len(self._records) >= self._histories_max:
                del self._records[next(iter(self._records))]
                self.forgotten_at = now
        self._records[key] = record
        return record


def history_complete(*, began_at: float | None, lost_at: list[float | None], other_routers: int | None) -> bool:
    """Whether all that a cache holds of a namespace passed through this router and is still known here.

    `began_at`: when the cache or the generation began, whichever is later, None if unknown. `lost_at`: moments up to
    which something may have been missed (boot, worker joined, eviction, other routers alive), None = never.
    """
    if began_at is None or other_routers is None or other_routers > 0:
        return False
    return all(lost is None or began_at >= lost + CLOCK_SKEW_S for lost in lost_at)


def _key(reservation: Reservation) -> RecordKey:
    grant = reservation.decision.request.grant
    return (grant.namespace, grant.policy.generation, grant.policy.generation_nonce, reservation.decision.worker)


def _hashes(fingerprint: Fingerprint | None) -> list[int]:
    return [] if fingerprint is None else fingerprint.hashes


def _total_tokens(outcome: Outcome) -> int | None:
    if outcome.prompt_tokens is None or outcome.completion_tokens is None:
        return None
    return outcome.prompt_tokens + outcome.completion_tokens
