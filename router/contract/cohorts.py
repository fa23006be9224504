"""Cohorts of requests whose times to first token may be compared: alike in prompt length, load and cache.

    key = ((length × LOADS + load) × CACHES + cache) × BUCKETS_MAX + (histogram bucket − INDEX_MIN)

One dict of key → count holds the TTFT histograms of all cohorts of a row, and is merged like any other histogram.
"""

from __future__ import annotations

from typing import Final

from router.contract.histogram import INDEX_MAX, INDEX_MIN

PROMPT_TOKENS_FROM: Final[tuple[int, ...]] = (0, 512, 2048, 8192, 32768)
"""Least prompt tokens of each length band: steps of four, within which prefill time differs by at most as much."""
REQUESTS_BESIDE_FROM: Final[tuple[int, ...]] = (0, 1, 4, 16)
"""Least requests under way on the worker at the choice, of each load band."""
CACHE_CLASSES: Final = ("hit", "partial", "miss", "unknown")
"""cached ÷ prompt ≥ 0.5, below it, nothing cached, not told."""
HIT, PARTIAL, MISS, UNKNOWN = 0, 1, 2, 3

LOADS: Final = len(REQUESTS_BESIDE_FROM)
CACHES: Final = len(CACHE_CLASSES)
BUCKETS_MAX: Final = 1024
"""Above the histogram's number of buckets."""
KEY_MAX: Final = len(PROMPT_TOKENS_FROM) * LOADS * CACHES * BUCKETS_MAX - 1

if INDEX_MAX - INDEX_MIN >= BUCKETS_MAX:
    raise AssertionError("a cohort's key cannot hold every bucket of the histogram")


def cohort_key(*, prompt_tokens: int, beside: int, cache: int, bucket: int) -> int:
    """`cache` is a place in CACHE_CLASSES, `bucket` one of the histogram's."""
    length = _band(PROMPT_TOKENS_FROM, prompt_tokens)
    load = _band(REQUESTS_BESIDE_FROM, beside)
    return ((length * LOADS + load) * CACHES + cache) * BUCKETS_MAX + bucket - INDEX_MIN


def _band(begins: tuple[int, ...], value: int) -> int:
    place = 0
    for begin in begins[1:]:
        if value < begin:
            break
        place += 1
    return place


def cohort_of(key: int) -> tuple[int, int, int, int]:
    """(length band, load band, cache class, histogram bucket). Raises ValueError for what is no key."""
    if not 0 <= key <= KEY_MAX:
        raise ValueError(f"no key of a cohort: {key}")
    cohort, bucket = divmod(key, BUCKETS_MAX)
    length, rest = divmod(cohort, LOADS * CACHES)
    load, cache = divmod(rest, CACHES)
    return length, load, cache, bucket + INDEX_MIN
