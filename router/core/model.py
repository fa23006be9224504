"""The nouns of one routed request, from who asks to what came of it.

Structs, because a request makes one of each: they are built in C. None of the frozen ones can be part of a cycle, so
the garbage collector need not look at them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from router.contract.ids import KeyId, NamespaceId, PoolId, TemplateRef, TenantId, WorkerId
from router.contract.snapshot import NamespacePolicy
from router.contract.telemetry import Candidate

if TYPE_CHECKING:
    from router.core.fleet import RoutableWorker
    from router.core.isolation import Record

_NO_TEMPLATE = TemplateRef("")


class Grant(msgspec.Struct, frozen=True, gc=False):
    """What an API key and a model name resolve to."""

    key: KeyId
    tenant: TenantId
    namespace: NamespaceId
    policy: NamespacePolicy
    pool: PoolId
    model: str
    salt: str
    """The `cache_salt` of the namespace's generation; never logged."""


class Fingerprint(msgspec.Struct, frozen=True, gc=False):
    """Chained keyed hashes of a prompt's whole blocks: `hashes[i]` stands for blocks 0…i together.

    A tail shorter than a block is not hashed (S0.1); `hashes` is empty for a prompt shorter than one block.
    """

    hashes: list[int]
    block_bytes: int
    text_bytes: int
    """Length of the canonical text, the tail included."""


class ExactMatch(msgspec.Struct, frozen=True, gc=False):
    """Leading tokens of a prompt that a worker holds, by tier; each tier counts from where the one before it ends."""

    device_tokens: int
    host_tokens: int = 0
    """In the worker's own host memory or disk."""
    remote_tokens: int = 0
    """In a shared tier that the worker can pull from."""


class ExactPrompt(msgspec.Struct, frozen=True, gc=False):
    """A prompt as the workers of its pool hash it: takes the place of the approximate index in the choice."""

    prompt_tokens: int
    block_hashes: Sequence[int]
    """Chained hashes of its whole blocks of `PoolPolicy.block_size` tokens; they bind tenant and model by the salt."""
    matches: Mapping[WorkerId, ExactMatch]
    """What each worker holds, from its KV events. A worker without an entry holds nothing, unless it is unknown."""
    unknown: frozenset[WorkerId] = frozenset()
    """Workers that cannot tell: what they are believed to hold of the request's fingerprint stands in."""


class RoutingRequest(msgspec.Struct, frozen=True, gc=False):
    request_id: str
    grant: Grant
    fingerprint: Fingerprint | None
    """None when the prompt cannot be fingerprinted (image parts, token-id prompts …): routed by load."""
    session: str | None = None
    """Client's session id (`X-Session-ID` or `user`), already bounded in length."""
    max_tokens: int | None = None
    template: TemplateRef = _NO_TEMPLATE
    form: str = "chat"
    """How the prompt came: `chat`, `text`, `ids`, `media` or `several`. Equal tokens in two forms differ as text, and
    of media it is not known how many tokens they are."""
    exclude: frozenset[WorkerId] = frozenset()
    """Workers already tried for this request."""
    exact: ExactPrompt | None = None
    """Set where the pool's workers tell what they hold; `fingerprint` then serves isolation and heat alone."""


class Decision(msgspec.Struct):
    """The chosen worker with every term that led there. Milliseconds throughout."""

    request: RoutingRequest
    worker: WorkerId
    url: str
    reason: str
    """One of `DECISION_REASONS`."""
    spill: str = ""
    """Why the request is not where affinity wanted it, or "": one of `telemetry.SPILL_REASONS`."""
    preferred: WorkerId | None = None
    """Where affinity alone would have sent it."""
    matched_blocks: int = 0
    """On the chosen worker: blocks of the fingerprint, or of the worker's own size for an exact prompt."""
    predicted_hit_tokens: int = 0
    """Loaded tokens included: a worker reports them as cached."""
    predicted_prompt_tokens: int = 0
    predicted_ttft_ms: float = 0.0
    """Queue, transfer and uncached prefill on the chosen worker."""
    loaded_tokens: int = 0
    """Of the predicted hits, tokens that a host or shared tier is to deliver."""
    candidates: list[Candidate] = []
    """Filled when asked for (explanations and samples); choosing does not need it."""


DECISION_REASONS = (
    "prefix",
    "session",
    "home",
    "spill_load",
    "spill_watermark",
    "least_outstanding",
    "round_robin",
    "retry",
)


class Reservation(msgspec.Struct, eq=False):
    """Load that a routed request puts on its worker, from the decision until it is released exactly once."""

    decision: Decision
    reserved_at: float
    prefill_tokens: int
    """Predicted uncached prompt tokens."""
    first_byte_at: float | None = None
    released: bool = False
    holder: RoutableWorker | None = None
    """The very worker object that carries the load; it may have left the fleet since."""
    ahead_tokens: int = 0
    """Uncached prefill tokens that were pending on the worker before this request."""
    history: Record | None = None
    """What its namespace (and generation) sent to the worker."""
    history_blocks: int = 0
    """Leading blocks that this namespace ever sent to the worker; from the first byte on, rivals included."""
    history_requests: int = 0
    """Requests of this namespace on the worker before this one; from the first byte on, rivals included."""
    crowded: bool = False
    """Too many rivals to follow: the isolation bound is unknown."""


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """How the forwarded request ended, as the relay saw it."""

    ok: bool
    error: str = ""
    """One of `telemetry.ERROR_KINDS` when not ok."""
    status: int = 200
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    """None = the worker did not say: unknown, not 0."""
    ttft_ms: float | None = None
    duration_ms: float | None = None


class Assessment(msgspec.Struct, frozen=True, gc=False):
    """What the core makes of an outcome, for telemetry."""

    predicted_hit_tokens: int
    saved_prefill_ms: float
    isolation: str
    """`ok`, `violation`, `unknown` (above the bound, but history is not complete) or "" (nothing to check)."""
    isolation_bound_tokens: int | None = None


class RoutingError(Exception):
    """Root of the core's refusals: InvalidKey (401), ModelNotFound (404), and with `retry_after_s` in seconds
    Shed and OverBudget (429), NamespaceStale, NamespaceUnready and NoWorker (503).

    `message` is fit for the client and the same whether the thing asked for is foreign, absent or revoked (S12).
    """

    status = 500
    kind = "internal"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidKey(RoutingError):
    status = 401
    kind = "unauthorized"


class ModelNotFound(RoutingError):
    status = 404
    kind = "not_found"


class NamespaceStale(RoutingError):
    """The snapshot is too old for a namespace with on_stale = deny."""

    status = 503
    kind = "no_worker"
    retry_after_s = 5


class NamespaceUnready(RoutingError):
    """No snapshot yet, or the namespace has no generation nonce: refused rather than sent unsalted (S2)."""

    status = 503
    kind = "no_worker"
    retry_after_s = 5


class NoWorker(RoutingError):
    status = 503
    kind = "no_worker"

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Shed(RoutingError):
    """Even the best worker would answer well after the namespace's limit: refused early, while that still helps."""

    status = 429
    kind = "rate_limited"

    def __init__(self, retry_after_s: int) -> None:
        super().__init__("The service is at its capacity for this account's response-time limit. Please retry later.")
        self.retry_after_s = retry_after_s


class OverBudget(RoutingError):
    """The tenant has used up its share of uncached prompt tokens (S11)."""

    status = 429
    kind = "rate_limited"

    def __init__(self, retry_after_s: int) -> None:
        super().__init__("The account's rate of uncached prompt tokens is exceeded. Please retry later.")
        self.retry_after_s = retry_after_s
