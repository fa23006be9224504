"""Hash-only recording of a share of the traffic: what the what-if simulation replays. No text, salt or key.

What leaves the process of a prompt are its anchors (`contract.recorded`): BLAKE2b of the fingerprint's hashes, keyed
with a key of this tenant and this cache salt alone. So equal texts of two tenants have nothing in common, even where
they share a cache domain, nor have texts before and after a rotation of the salt; and nobody without the fleet key can
look a text up.

A request that is not kept costs the look-up of its unit; the records of a second are bounded by the budget.
"""

from __future__ import annotations

import hashlib
import random
from bisect import bisect_right
from typing import Final

from router.call import Call
from router.contract.recorded import ANCHOR_BYTES, ANCHORS_MAX, RECORDED_MAX, RecordedRequest, anchor_positions
from router.contract.secrets import FleetKey, framed
from router.core.model import Grant
from router.core.sampling import Sampling, Unit

CLIENT_LEFT: Final = "client_disconnect"
KEYS_MAX: Final = 4_096
"""Remembered keys of tenants' salts; about 400 bytes each."""
_HASH_BYTES: Final = 16
_NO_HASHES: Final[list[int]] = []
_POSITIONS: Final = anchor_positions(1 << 20)[:ANCHORS_MAX]


class Recording:
    """`per_s`: requests kept a second, by whole sessions; 0 = nothing is recorded."""

    def __init__(self, *, fleet_key: FleetKey, per_s: float, rng: random.Random) -> None:
        self._key: Final = fleet_key.subkey("recorded/v1")
        self._sampling: Final = Sampling(per_s=per_s)
        self._rng: Final = rng
        self._keys: dict[tuple[str, str], hashlib.blake2b] = {}
        self._records: list[RecordedRequest] = []
        self._lost = 0
        self.on: Final = per_s > 0

    @property
    def dropped(self) -> int:
        """Requests of kept sessions that are not in the recording, since the start."""
        return self._sampling.refused + self._lost

    @property
    def share(self) -> float:
        """Of the sessions that are kept at this moment."""
        return self._sampling.share

    def look(self, call: Call, *, at: float) -> None:
        """Records a finished call, or not. It is not kept."""
        decision, outcome = call.decision, call.outcome
        # What a worker refused or failed cost it little; whose client left had its prompt computed.
        if decision is None or not (outcome.ok or outcome.error == CLIENT_LEFT):
            return
        fingerprint = decision.request.fingerprint
        hashes = _NO_HASHES if fingerprint is None else fingerprint.hashes
        unit = self._sampling.keeps(hashes, self._rng)
        if unit is None:
            return
        if len(self._records) >= RECORDED_MAX:
            self._lost += 1
            return
        self._records.append(self._record(call, unit, hashes, at))

    def take(self) -> list[RecordedRequest]:
        """The records since the last time; a second has gone by."""
        self._sampling.second()
        records, self._records = self._records, []
        return records

    def lose(self, count: int) -> None:
        """So many taken records could not be shipped."""
        self._lost += count

    def _record(self, call: Call, unit: Unit, hashes: list[int], at: float) -> RecordedRequest:
        decision, outcome = call.decision, call.outcome
        assert decision is not None
        request = decision.request
        grant, fingerprint = request.grant, request.fingerprint
        keyed = self._keyed(grant)
        return RecordedRequest(
            at=at - (outcome.duration_ms or 0.0) / 1000,
            tenant=grant.tenant,
            namespace=grant.namespace,
            pool=grant.pool,
            model=grant.model,
            worker=decision.worker,
            prompt_tokens=max(1, outcome.prompt_tokens or decision.predicted_prompt_tokens),
            output_tokens=outcome.completion_tokens or 0,
            cached_tokens=outcome.cached_tokens,
            ttft_ms=outcome.ttft_ms,
            duration_ms=outcome.duration_ms,
            template=call.template,
            text_bytes=0 if fingerprint is None else fingerprint.text_bytes,
            anchors=_anchors(keyed, hashes),
            unit=_anchor(keyed, hashes[unit.depth - 1]) if unit.depth else self._rng.randbytes(ANCHOR_BYTES),
            head_blocks=unit.head,
            share=self._sampling.share,
        )

    def _keyed(self, grant: Grant) -> hashlib.blake2b:
        """A hash to be copied, with the key of a tenant's salt."""
        whose = (grant.tenant, grant.salt)
        keyed = self._keys.get(whose)
        if keyed is None:
            if len(self._keys) >= KEYS_MAX:
                self._keys.clear()
            key = hashlib.blake2b(framed(*whose), key=self._key, digest_size=32).digest()
            keyed = self._keys[whose] = hashlib.blake2b(key=key, digest_size=ANCHOR_BYTES)
        return keyed


def _anchors(keyed: hashlib.blake2b, hashes: list[int]) -> bytes:
    count = bisect_right(_POSITIONS, len(hashes))
    return b"".join([_anchor(keyed, hashes[position - 1]) for position in _POSITIONS[:count]])


def _anchor(keyed: hashlib.blake2b, block: int) -> bytes:
    copy = keyed.copy()
    copy.update(block.to_bytes(_HASH_BYTES))
    return copy.digest()
