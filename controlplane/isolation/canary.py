"""What a canary asks and how its answers are judged (S7). Pure: no network, no clock.

On one endpoint of one worker, with a prompt P and two salts A and B that nobody has used before:

    prime     (A, P)        nothing can be cached
    foreign   (B, P)        must add 0 hits
    unsalted  (no salt, P)  must add 0 hits beyond what every prompt has in front, the chat template's head
    own       (A, P)        must add some: P was there all the time, and the two before could have met it

Without an own hit the canary proves nothing: caching is off, or P was evicted meanwhile.

A and B begin alike, so that whoever shortens salts is seen. P begins with random digits: its first block is its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

GREEN, RED, INCONCLUSIVE, NOT_OFFERED = "green", "red", "inconclusive", "not_offered"

ENDPOINTS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "embeddings": "/v1/embeddings",
}
"""Name → path: every endpoint over which the router sends prompts."""

UNTOLD = (
    "Cached tokens were not told: start the worker with --enable-prompt-tokens-details. Embeddings never tell them, "
    "and the worker's counters speak for one request only while no other runs."
)
PROMPT_BLOCKS = 3
WORDS = ("tide", "moon", "harbour", "anchor", "current", "ebb", "flood", "shore", "keel", "buoy", "estuary", "sail")
SHARED_SALT_CHARS = 21
"""Of 43: half of the salt is the same in A and B, and still 126 random bits differ."""
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


@dataclass(frozen=True, slots=True)
class Leg:
    """One answer. `cached` None = the worker did not tell; `refusal` says why there is no answer."""

    status: int = 200
    cached: int | None = None
    prompt_tokens: int | None = None
    refusal: str = ""
    guarded: bool = False
    """The worker's guard refused it."""


@dataclass(frozen=True, slots=True)
class Legs:
    prime: Leg
    foreign: Leg = Leg(status=0)
    own: Leg = Leg(status=0)
    unsalted: Leg = Leg(status=0)
    head: Leg | None = None
    """(no salt, another prompt), asked when `unsalted` had hits: what any prompt finds."""


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: str
    reason: str


def prompt_for(block_size: int, rng: Random) -> str:
    """At least PROMPT_BLOCKS whole blocks in any tokenizer: a word is a token or more. Its head occurs nowhere else."""
    words = [rng.choice(WORDS) for _ in range((PROMPT_BLOCKS + 1) * block_size)]
    return f"{rng.getrandbits(64):020d} " + " ".join(words)


def salts_for(rng: Random) -> tuple[str, str]:
    head, tails = _chars(rng, SHARED_SALT_CHARS), (_chars(rng, 22), _chars(rng, 22))
    return head + tails[0], head + tails[1]


def _chars(rng: Random, count: int) -> str:
    return "".join(rng.choice(_ALPHABET) for _ in range(count))


def body_for(endpoint: str, *, model: str, text: str, salt: str | None, stream: bool = False) -> dict[str, object]:
    body: dict[str, object] = {"model": model}
    if endpoint == "completions":
        body |= {"prompt": text, "max_tokens": 1, "temperature": 0}
    elif endpoint == "responses":
        body |= {"input": text, "max_output_tokens": 1, "temperature": 0, "store": False}
    elif endpoint == "embeddings":
        body |= {"input": text}
    else:
        body |= {"messages": [{"role": "user", "content": text}], "max_tokens": 1, "temperature": 0}
    if salt is not None:
        body["cache_salt"] = salt
    if stream:
        body["stream"] = True
    return body


def usage_of(endpoint: str, answer: object) -> tuple[int | None, int | None]:
    """(prompt tokens, cached tokens) as the endpoint's dialect tells them; None = not told."""
    usage = answer.get("usage") if isinstance(answer, dict) else None
    if not isinstance(usage, dict):
        return None, None
    if endpoint == "messages":
        cached = _count(usage.get("cache_read_input_tokens"))
        fresh = _count(usage.get("input_tokens"))
        return None if fresh is None else fresh + (cached or 0), cached
    prompt, details = ("prompt_tokens", "prompt_tokens_details")
    if endpoint == "responses":
        prompt, details = ("input_tokens", "input_tokens_details")
    named = usage.get(details)
    return _count(usage.get(prompt)), _count(named.get("cached_tokens")) if isinstance(named, dict) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def judge(legs: Legs, *, guarded: bool) -> Judgement:
    """`guarded`: the pool says that its workers let nothing unsalted in."""
    if legs.prime.status in (404, 405, 501):
        return Judgement(NOT_OFFERED, "The worker does not offer this endpoint.")
    leak = _leak(legs, guarded=guarded)
    if leak:
        return Judgement(RED, leak)
    for name, leg in (("first", legs.prime), ("foreign", legs.foreign), ("own", legs.own), ("unsalted", legs.unsalted)):
        if leg.status != 200 and not (name == "unsalted" and leg.guarded):
            return Judgement(INCONCLUSIVE, f"The {name} request was not answered: {leg.refusal or leg.status}.")
        if leg.status == 200 and leg.cached is None:
            return Judgement(INCONCLUSIVE, UNTOLD)
    if not legs.own.cached:
        return Judgement(INCONCLUSIVE, "The same salt and prompt had no hit: caching is off, or the cache was full.")
    return Judgement(GREEN, f"Own salt {legs.own.cached} hit tokens, another salt 0, no salt 0.")


def _leak(legs: Legs, *, guarded: bool) -> str:
    """What must never be, in one sentence; "" when it was not seen."""
    if legs.prime.cached:
        return f"A salt and prompt never used before had {legs.prime.cached} cached tokens: salts have no effect."
    if legs.foreign.cached:
        return f"Another salt had {legs.foreign.cached} cached tokens of this one's prompt."
    if guarded and legs.unsalted.status == 200:
        return "The pool is guarded, and a request without salt and proof was served."
    head = legs.head.cached or 0 if legs.head is not None else 0
    if (legs.unsalted.cached or 0) > head:
        return f"A request without salt had {legs.unsalted.cached} cached tokens of a salted prompt."
    return ""
