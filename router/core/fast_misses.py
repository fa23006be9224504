"""Answers that came too soon for what they say was computed (S1.6): a hit that a worker does not own up to.

An answer names its cached tokens, so the rest was prefilled; the worker's learnt rate says how long that takes. A first
byte in a small fraction of it means that the tokens were cached after all, so that the isolation bound was judged by a
number that is not true. Only a warning: time is a weak witness, and rates are learnt under load.
"""

from __future__ import annotations

from typing import Final

from router.core.model import Outcome, Reservation
from router.core.rates import PrefillRate

FACTOR: Final = 8.0
"""A hit is 8 to 30 times as fast as a miss (vLLM 0.32: 2k tokens 8.4×, 8k 31×); a rate learnt under load is off by 2 to
4."""
EXPECTED_S_MIN: Final = 0.25
"""Below it the fixed costs of a first token, and their jitter, are too much of the time."""
LEARNT_S_MIN: Final = 5.0
"""Prefill that a rate must have been learnt from: the first estimate may be off by any factor."""


def expected_s(*, work_tokens: float, rate: PrefillRate) -> float | None:
    """Seconds that this prefill takes alone, None where it is short or the rate is hardly known."""
    seconds = work_tokens / rate.tokens_per_s
    return seconds if rate.seen_s >= LEARNT_S_MIN and seconds >= EXPECTED_S_MIN else None


def took_s(reservation: Reservation, outcome: Outcome) -> float | None:
    """Seconds to the first byte of an answer that names its tokens, queue included; None where it tells nothing."""
    if not outcome.ok or reservation.first_byte_at is None or outcome.cached_tokens is None:
        return None
    if outcome.prompt_tokens is None or reservation.decision.request.form.startswith("several"):
        return None
    seconds = reservation.first_byte_at - reservation.reserved_at
    return seconds if seconds > 0.0 else None
