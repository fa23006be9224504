"""The nouns of one routed request, from who asks to what came of it.

Plain classes with an `__init__` of their own: a request makes one of each, and compiled (`router/native`) they are made
and read without a look-up by name. What is `Final` is never changed once the object is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from router.contract.ids import KeyId, NamespaceId, PoolId, TemplateRef, TenantId, WorkerId
from router.contract.snapshot import NamespacePolicy
from router.contract.telemetry import Candidate

if TYPE_CHECKING:
    from router.core.exact.expected import Expectation
    from router.core.fleet import RoutableWorker
    from router.core.isolation import Record
    from router.core.transfer import Source

_NO_TEMPLATE: Final = TemplateRef("")
_NO_OWNER: Final = TenantId("")
_NOWHERE: Final[frozenset[WorkerId]] = frozenset()


class Grant:
    """What an API key and a model name resolve to."""

    __slots__ = (
        "cache", "explains", "key", "model", "model_nonce", "namespace", "owner", "policy", "pool", "public", "salt",
        "tenant",
    )  # fmt: skip

    def __init__(
        self,
        key: KeyId,
        tenant: TenantId,
        namespace: NamespaceId,
        policy: NamespacePolicy,
        pool: PoolId,
        model: str,
        salt: str,
        model_nonce: str = "",
        explains: bool = False,
        cache: str = "",
        owner: TenantId = _NO_OWNER,
        public: Grant | None = None,
    ) -> None:
        self.key: Final = key
        self.tenant: Final = tenant
        self.namespace: Final = namespace
        self.policy: Final = policy
        self.pool: Final = pool
        self.model: Final = model
        self.salt: Final = salt
        """The `cache_salt` of the namespace's generation; never logged."""
        self.model_nonce: Final = model_nonce
        """Of the model's generation; "" in its first."""
        self.explains: Final = explains
        """Whether answers tell how they were routed: an operator's key (S6)."""
        self.cache: Final = cache
        """Id of the cache domain: what is hashed, indexed and judged together. The namespace's own where it is
        private."""
        self.owner: Final = owner
        """Whose share of the index it takes: the tenant, or a domain that tenants share."""
        self.public: Final = public
        """The same for a request that is nothing but a public text; None where that changes nothing."""


class Fingerprint:
    """Chained keyed hashes of a prompt's whole blocks: `hashes[i]` stands for blocks 0…i together.

    A tail shorter than a block is not hashed (S0.1); `hashes` is empty for a prompt shorter than one block.
    """

    __slots__ = ("block_bytes", "hashes", "text_bytes")

    def __init__(self, hashes: list[int], block_bytes: int, text_bytes: int) -> None:
        self.hashes: Final = hashes
        self.block_bytes: Final = block_bytes
        self.text_bytes: Final = text_bytes
        """Length of the canonical text, the tail included."""


class ExactMatch:
    """Leading tokens of a prompt that a worker holds, by tier; each tier counts from where the one before it ends."""

    __slots__ = ("device_tokens", "expected_tokens", "host_tokens", "remote_tokens")

    def __init__(
        self, device_tokens: int, host_tokens: int = 0, remote_tokens: int = 0, expected_tokens: int = 0
    ) -> None:
        self.device_tokens: Final = device_tokens
        self.host_tokens: Final = host_tokens
        """In the worker's own host memory or disk."""
        self.remote_tokens: Final = remote_tokens
        """In a shared tier that the worker can pull from."""
        self.expected_tokens: Final = expected_tokens
        """The last of the device's: on their way there (`exact/expected.py`), and not told of by the worker."""

    @property
    def told_tokens(self) -> int:
        """What the worker itself told of, in any tier."""
        return self.device_tokens - self.expected_tokens + self.host_tokens + self.remote_tokens

    def reaching(self, device_tokens: int) -> ExactMatch:
        """The same match with more on its way to the device, as far as `device_tokens`."""
        near = self.device_tokens + self.host_tokens
        whole = near + self.remote_tokens
        return ExactMatch(
            device_tokens,
            max(0, near - device_tokens),
            max(0, whole - max(near, device_tokens)),
            device_tokens - self.device_tokens,
        )


class ExactPrompt:
    """A prompt as the workers of its pool hash it: takes the place of the approximate index in the choice."""

    __slots__ = ("block_hashes", "matches", "prompt_tokens", "unknown")

    def __init__(
        self,
        prompt_tokens: int,
        block_hashes: Sequence[int],
        matches: Mapping[WorkerId, ExactMatch],
        unknown: frozenset[WorkerId] = _NOWHERE,
    ) -> None:
        self.prompt_tokens: Final = prompt_tokens
        self.block_hashes: Final = block_hashes
        """Chained hashes of its whole blocks of `PoolPolicy.block_size` tokens; the salt binds them to tenant and
        model."""
        self.matches: Final = matches
        """What each worker holds, from its KV events. A worker without an entry holds nothing, unless it is unknown."""
        self.unknown: Final = unknown
        """Workers that cannot tell: what they are believed to hold of the request's fingerprint stands in."""


class RoutingRequest:
    __slots__ = (
        "admitted", "exact", "exclude", "fingerprint", "form", "grant", "max_tokens", "may_pull", "request_id",
        "session", "template",
    )  # fmt: skip

    def __init__(
        self,
        request_id: str,
        grant: Grant,
        fingerprint: Fingerprint | None,
        session: str | None = None,
        max_tokens: int | None = None,
        template: TemplateRef = _NO_TEMPLATE,
        form: str = "chat",
        exclude: frozenset[WorkerId] = _NOWHERE,
        exact: ExactPrompt | None = None,
        may_pull: bool = False,
        admitted: bool = False,
    ) -> None:
        self.request_id: Final = request_id
        self.grant: Final = grant
        self.fingerprint: Final = fingerprint
        """None when the prompt cannot be fingerprinted (image parts, token-id prompts …): routed by load."""
        self.session: Final = session
        """Client's session id (`X-Session-ID` or `user`), already bounded in length."""
        self.max_tokens: Final = max_tokens
        self.template: Final = template
        self.form: Final = form
        """How the prompt came: `chat`, `text`, `ids`, `media` or `several`, and which settings a template may leave out
        came with it (`chat+<their hash>`). Equal tokens in two forms differ as text, and of media it is not known how
        many tokens they are."""
        self.exclude: Final = exclude
        """Workers already tried for this request."""
        self.exact: Final = exact
        """Set where the pool's workers tell what they hold; `fingerprint` then serves isolation and heat alone."""
        self.may_pull: Final = may_pull
        """Whether the chosen worker may pull the prompt's KV from another one."""
        self.admitted: Final = admitted
        """Whether it was let in before and is decided anew: no budget and no limit refuses it any more."""

    def without_pull(self) -> RoutingRequest:
        """The same request, to be computed where it goes."""
        return RoutingRequest(
            self.request_id,
            self.grant,
            self.fingerprint,
            self.session,
            self.max_tokens,
            self.template,
            self.form,
            self.exclude,
            self.exact,
            admitted=self.admitted,
        )

    def excluding(self, worker: WorkerId) -> RoutingRequest:
        """The same request, not to be sent to this worker."""
        return RoutingRequest(
            self.request_id,
            self.grant,
            self.fingerprint,
            self.session,
            self.max_tokens,
            self.template,
            self.form,
            self.exclude | {worker},
            self.exact,
            self.may_pull,
            self.admitted,
        )


class Decision:
    """The chosen worker with every term that led there. Milliseconds throughout."""

    __slots__ = (
        "beside",
        "best_hit_tokens",
        "candidates",
        "expected_tokens",
        "leg",
        "loaded_tokens",
        "matched_blocks",
        "predicted_hit_tokens",
        "predicted_prompt_tokens",
        "predicted_queue_ms",
        "predicted_ttft_ms",
        "preferred",
        "prefix",
        "reason",
        "repeated_tokens",
        "request",
        "source",
        "spill",
        "spread",
        "url",
        "worker",
    )

    def __init__(
        self,
        request: RoutingRequest,
        worker: WorkerId,
        url: str,
        reason: str,
        spill: str = "",
        preferred: WorkerId | None = None,
    ) -> None:
        self.request = request
        self.worker = worker
        self.url: Final = url
        self.reason = reason
        """One of `DECISION_REASONS`."""
        self.spill = spill
        """Why the request is not where affinity wanted it, or "": one of `telemetry.SPILL_REASONS`."""
        self.preferred = preferred
        """Where affinity alone would have sent it."""
        self.matched_blocks = 0
        """On the chosen worker: blocks of the fingerprint, or of the worker's own size for an exact prompt."""
        self.predicted_hit_tokens = 0
        """Loaded tokens included: a worker reports them as cached."""
        self.expected_tokens = 0
        """Of the predicted hits, tokens on their way to the worker in other requests: it has not told of them."""
        self.predicted_prompt_tokens = 0
        self.predicted_ttft_ms = 0.0
        """Queue, transfer and uncached prefill on the chosen worker."""
        self.predicted_queue_ms = 0.0
        """The queue alone."""
        self.prefix = ""
        """Keyed id of the prompt's prefix; filled when asked for, like `candidates`."""
        self.spread = 0
        """Homes that a placement rule asks for; 0 = no rule."""
        self.loaded_tokens = 0
        """Of the predicted hits, tokens that a host or shared tier, or the source, is to deliver."""
        self.source: Source | None = None
        """The worker from which the chosen one is to pull; the predicted hits are then what the source holds."""
        self.leg = False
        """Whether this is the source's part of another decision: the request itself goes elsewhere."""
        self.best_hit_tokens = 0
        """The most that any worker of the pool is thought to hold, whether or not it may serve."""
        self.repeated_tokens = -1
        """Of the prompt's head that came before, on any worker, as far as history is kept; −1 = not known: there is no
        text, or the request itself is in the history already (a retry, a pull that failed)."""
        self.beside = 0
        """Requests under way on the worker when this one was reserved."""
        self.candidates: list[Candidate] = []
        """Filled when asked for (explanations and samples); choosing does not need it."""

    def promised_tokens(self, delivered_tokens: int) -> int:
        """The hits that the worker has to answer for: whether those that were only expected came is not its doing."""
        told = self.predicted_hit_tokens - self.expected_tokens
        return min(max(told, delivered_tokens), self.predicted_hit_tokens)


DECISION_REASONS: Final = (
    "prefix",
    "session",
    "home",
    "spill_load",
    "spill_watermark",
    "least_outstanding",
    "round_robin",
    "retry",
)


class Reservation:
    """Load that a routed request puts on its worker, from the decision until it is released exactly once."""

    __slots__ = (
        "ahead_work",
        "alone",
        "crowded",
        "decision",
        "expectation",
        "first_byte_at",
        "history",
        "history_blocks",
        "history_requests",
        "holder",
        "prefill_began_at",
        "prefill_tokens",
        "prefill_work",
        "pulled",
        "pulled_tokens",
        "released",
        "reserved_at",
    )

    def __init__(self, decision: Decision, reserved_at: float, prefill_tokens: int, prefill_work: int) -> None:
        self.decision: Final = decision
        self.reserved_at: Final = reserved_at
        self.prefill_tokens: Final = prefill_tokens
        """Predicted uncached prompt tokens."""
        self.prefill_work: Final = prefill_work
        """The same, weighed by what is before them (`rates.Attention`)."""
        self.prefill_began_at = reserved_at
        """When its worker was free for it: at the decision, or when the first byte before its own came."""
        self.ahead_work = 0.0
        """Prefill of other routers' requests that was pending on the worker before this request."""
        self.alone = False
        """Whether the worker had nothing else to prefill then."""
        self.expectation: Expectation | None = None
        """The prompt's blocks on their way to the worker, in exact mode."""
        self.first_byte_at: float | None = None
        self.released = False
        self.holder: RoutableWorker | None = None
        """The very worker object that carries the load; it may have left the fleet since."""
        self.history: Record | None = None
        """What its namespace (and generation) sent to the worker."""
        self.history_blocks = 0
        """Leading blocks that this namespace ever sent to the worker; from the first byte on, rivals included."""
        self.history_requests = 0
        """Requests of this namespace on the worker before this one; from the first byte on, rivals included."""
        self.pulled: Assessment | None = None
        """Of a pull: what the core made of the source's answer."""
        self.pulled_tokens = 0
        """Cached tokens in that answer, which the worker that pulls repeats."""
        self.crowded = False
        """Too many rivals to follow: the isolation bound is unknown."""


class Outcome:
    """How the forwarded request ended, as the relay saw it."""

    __slots__ = (
        "cached_tokens",
        "completion_tokens",
        "duration_ms",
        "error",
        "ok",
        "prompt_tokens",
        "status",
        "ttft_ms",
    )

    def __init__(
        self,
        ok: bool,
        error: str = "",
        status: int = 200,
        prompt_tokens: int | None = None,
        completion_tokens: int | None = None,
        cached_tokens: int | None = None,
        ttft_ms: float | None = None,
        duration_ms: float | None = None,
    ) -> None:
        self.ok: Final = ok
        self.error: Final = error
        """One of `telemetry.ERROR_KINDS` when not ok."""
        self.status: Final = status
        self.prompt_tokens: Final = prompt_tokens
        self.completion_tokens: Final = completion_tokens
        self.cached_tokens: Final = cached_tokens
        """None = the worker did not say: unknown, not 0."""
        self.ttft_ms: Final = ttft_ms
        self.duration_ms: Final = duration_ms


class Assessment:
    """What the core makes of an outcome, for telemetry."""

    __slots__ = (
        "evidence", "expected_ttft_ms", "isolation", "isolation_bound_tokens", "predicted_hit_tokens",
        "saved_prefill_ms",
    )  # fmt: skip

    def __init__(
        self,
        predicted_hit_tokens: int,
        saved_prefill_ms: float,
        isolation: str,
        isolation_bound_tokens: int | None = None,
        evidence: str = "",
        expected_ttft_ms: float = 0.0,
    ) -> None:
        self.predicted_hit_tokens: Final = predicted_hit_tokens
        self.saved_prefill_ms: Final = saved_prefill_ms
        self.isolation: Final = isolation
        """`ok`, `violation`, `unknown` (above the bound, but history is not complete) or "" (nothing to check)."""
        self.isolation_bound_tokens: Final = isolation_bound_tokens
        self.evidence: Final = evidence
        """Of a violation, or a first byte too soon: keyed hash of the prompt's blocks, 32 hexadecimal digits."""
        self.expected_ttft_ms: Final = expected_ttft_ms
        """How long the first byte should have taken, where it came too soon (`fast_misses`); else 0."""


class RoutingError(Exception):
    """Root of the core's refusals: InvalidKey (401), ModelNotFound (404), and with `retry_after_s` in seconds
    Shed and OverBudget (429), NamespaceStale, NamespaceUnready and NoWorker (503).

    `message` is fit for the client and the same whether the thing asked for is foreign, absent or revoked (S12).
    """

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "internal"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidKey(RoutingError):
    status: ClassVar[int] = 401
    kind: ClassVar[str] = "unauthorized"


class ModelNotFound(RoutingError):
    status: ClassVar[int] = 404
    kind: ClassVar[str] = "not_found"


class NamespaceStale(RoutingError):
    """The snapshot is too old for a namespace with on_stale = deny."""

    status: ClassVar[int] = 503
    kind: ClassVar[str] = "no_worker"
    retry_after_s: ClassVar[int] = 5


class NamespaceUnready(RoutingError):
    """No snapshot yet, or the namespace has no generation nonce: refused rather than sent unsalted (S2)."""

    status: ClassVar[int] = 503
    kind: ClassVar[str] = "no_worker"
    retry_after_s: ClassVar[int] = 5


class NoWorker(RoutingError):
    status: ClassVar[int] = 503
    kind: ClassVar[str] = "no_worker"

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Shed(RoutingError):
    """Even the best worker would answer well after the namespace's limit: refused early, while that still helps."""

    status: ClassVar[int] = 429
    kind: ClassVar[str] = "rate_limited"

    def __init__(self, retry_after_s: int) -> None:
        super().__init__("The service is at its capacity for this account's response-time limit. Please retry later.")
        self.retry_after_s = retry_after_s


class OverBudget(RoutingError):
    """The tenant has used up its share of uncached prompt tokens (S11)."""

    status: ClassVar[int] = 429
    kind: ClassVar[str] = "rate_limited"

    def __init__(self, retry_after_s: int) -> None:
        super().__init__("The account's rate of uncached prompt tokens is exceeded. Please retry later.")
        self.retry_after_s = retry_after_s
