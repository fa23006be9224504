"""What routers and the KV-event subscriber ship to the control plane: one-second aggregates, no prompt text.

Entries go to the stream `channels.TELEMETRY_STREAM` with one field `m`: msgpack of a `Shipment`. A shipment is
identified by (source, boot, seq); the ingester applies each at most once.
"""

from __future__ import annotations

import msgspec

from router.contract.histogram import Buckets
from router.contract.recorded import RecordedRequest

SHIPMENT_BYTES_MAX = 4 * 1024 * 1024
"""A larger shipment is refused by the ingester and counted."""


class RequestRow(msgspec.Struct, omit_defaults=True):
    """Finished requests of one second and one combination of dimensions. Times are milliseconds unless named."""

    tenant: str = ""
    namespace: str = ""
    pool: str = ""
    worker: str = ""
    """"" when no worker was chosen (refused before choice)."""
    model: str = ""
    template: str = ""

    requests: int = 0
    """Answered or failed; refused ones are in `errors` too."""
    errors: dict[str, int] = {}
    """Closed set: `errors_kinds`."""
    retries: int = 0
    spills: dict[str, int] = {}
    """Closed set of reasons why a request left its preferred worker: watermark, load, drain, breaker, retry."""

    prompt_tokens: int = 0
    """Of requests whose usage was seen."""
    output_tokens: int = 0
    usage_known: int = 0
    """Requests with a usage block."""
    hit_tokens: int = 0
    """Delivered: the worker's own cached_tokens."""
    hit_known: int = 0
    """Requests whose cached_tokens was a number; others are unknown, not 0."""
    hit_prompt_tokens: int = 0
    """prompt_tokens of the hit_known requests: the denominator of the hit-token share."""
    predicted_hit_tokens: int = 0
    """Predicted for the chosen worker, over the hit_known requests, so that it compares with hit_tokens."""
    saved_prefill_ms: float = 0.0
    """hit_tokens ÷ the worker's calibrated prefill rate: GPU time not spent."""
    pulls: int = 0
    """Requests whose worker was to pull the prompt's KV from another one."""
    pulls_failed: int = 0
    """Of these, the ones that were computed after all."""
    pulled_tokens: int = 0
    """Tokens of the prompts that were pulled, as predicted."""

    ttft_hit: Buckets = {}
    """cached ÷ prompt ≥ 0.5."""
    ttft_partial: Buckets = {}
    """0 < cached ÷ prompt < 0.5."""
    ttft_miss: Buckets = {}
    """cached = 0."""
    ttft_unknown: Buckets = {}
    duration: Buckets = {}
    decision_us: Buckets = {}
    """Microseconds."""

    slo_met: int = 0
    slo_known: int = 0
    """Requests in a namespace with a TTFT objective and with a measured TTFT, or failed (not met)."""

    isolation_checked: int = 0
    isolation_unknown: int = 0
    isolation_violations: int = 0

    repeated_tokens: int = 0
    """Over the hit_known requests: the longest head of the prompt that came before, on any worker; what one cache that
    all workers share and that never evicts would have hit. Never below `best_hit_tokens`."""
    best_hit_tokens: int = 0
    """The most that any worker was thought to hold at the choice; never below `expected_hit_tokens`."""
    expected_hit_tokens: int = 0
    """What the chosen worker was thought to hold, in proportion to prompt_tokens; never below `hit_tokens`."""
    unjudged_tokens: int = 0
    """Uncached prompt tokens of requests without text to compare, and of retries: their cause is unknown."""
    routing_loss: dict[str, int] = {}
    """best − expected by why the request did not go to the best holder: ROUTING_LOSSES."""
    hit_size: Buckets = {}
    """Hit tokens of a request."""
    cohorts: dict[int, int] = {}
    """TTFT by prompt length, load and cache: `router.contract.cohorts`."""


ERROR_KINDS = (
    "bad_request",
    "unauthorized",
    "forbidden",
    "not_found",
    "too_large",
    "rate_limited",
    "no_worker",
    "upstream_error",
    "upstream_timeout",
    "upstream_died",
    "client_disconnect",
    "internal",
)
"""The closed set of `RequestRow.errors` keys and of the `outcome` metric label (besides `ok`)."""

SPILL_REASONS = ("watermark", "load", "drain", "breaker", "retry")
BY_CHOICE = "choice"
"""It left no preferred worker: another was better for it, or no rule looked at prefixes."""
ROUTING_LOSSES = (*SPILL_REASONS, BY_CHOICE)
"""The closed set of `RequestRow.routing_loss` keys."""


class Violation(msgspec.Struct, omit_defaults=True):
    """One answer with more cached tokens than the namespace's own history on that worker allows (S8), or (kind `ttft`)
    one whose first byte came too soon for the tokens it says were computed (S1.6)."""

    at: float
    request_id: str
    tenant: str
    namespace: str
    pool: str
    worker: str
    model: str
    prompt_tokens: int
    cached_tokens: int
    bound_tokens: int
    """The most that history allows; cached_tokens above it is the violation."""
    evidence: str = ""
    """Keyed hash of the prompt's blocks, 32 hexadecimal digits: equal for equal prompts of one namespace generation."""
    kind: str = "bound"
    """`bound` or `ttft`; of the latter `bound_tokens` is 0."""
    ttft_ms: float = 0.0
    """Of `ttft`."""
    expected_ms: float = 0.0
    """Of `ttft`: the uncached prompt tokens ÷ the worker's learnt rate."""


class DecisionSample(msgspec.Struct, omit_defaults=True):
    """One explained decision: all violations and errors, slow requests, and a small random share of the rest."""

    at: float
    request_id: str
    tenant: str
    namespace: str
    pool: str
    model: str
    policy_version: int
    worker: str
    reason: str
    """`prefix`, `session`, `home`, `spill_load`, `spill_watermark`, `least_outstanding`, `round_robin`, `retry`."""
    sentence: str
    """The choice in one English sentence with numbers."""
    candidates: list[Candidate] = []
    template: str = ""
    prompt_tokens: int | None = None
    predicted_hit_tokens: int = 0
    cached_tokens: int | None = None
    ttft_ms: float | None = None
    duration_ms: float | None = None
    decision_us: float = 0.0
    outcome: str = "ok"
    status: int = 200
    preferred: str = ""
    """Where affinity alone would have sent it; "" = nowhere."""
    spill: str = ""
    """Why it left the preferred worker: one of SPILL_REASONS, or ""."""
    predicted_prompt_tokens: int = 0
    exact: bool = False
    """Whether the workers themselves told what they hold."""
    pull: str = ""
    """Of a prompt whose KV was to be pulled from another worker: `ok`, or `fell_back`: it was computed after all."""
    pulled_from: str = ""
    """That worker."""
    pull_ms: float = 0.0
    """Until it had offered the KV; of a pull that fell back, until the request was decided anew."""
    output_tokens: int | None = None
    predicted_ttft_ms: float = 0.0
    """Queue, transfer and uncached prefill on the chosen worker, as the choice expected them."""
    retries: int = 0
    retried_after_ms: float = 0.0
    """From the request's arrival to the last worker's choice, where another was asked before."""
    auth_us: float | None = None
    """From key and model to what they may use. This and `fingerprint_us`: of the random share alone, else None."""
    reading_us: float = 0.0
    """Tokenising the prompt, on the event loop, in exact mode. Part of `decision_us`, as `fingerprint_us` is; the rest
    of it is match and choice."""
    fingerprint_us: float | None = None
    connect_ms: float = 0.0
    """Opening a connection to the worker; 0 = an idle one was there."""
    queue_ms: float | None = None
    """From the decision until the worker was free for the request, by the router's own ledger; None = not a stream, or
    it never began to answer. What is left of `ttft_ms` is prefill."""
    prefix: str = ""
    """Keyed id of its prefix, as in `PrefixHeat`; "" = shorter than a block, or not explained."""
    spread: int = 0
    """Homes that a placement rule asked for; 0 = no rule."""


class Candidate(msgspec.Struct, omit_defaults=True):
    """One worker as the choice saw it. `*_ms` terms are those of `router.core`; `excluded` names a filter."""

    worker: str
    matched_tokens: int = 0
    saved_ms: float = 0.0
    queue_ms: float = 0.0
    pressure_ms: float = 0.0
    imbalance_ms: float = 0.0
    net_ms: float = 0.0
    outstanding: int = 0
    excluded: str = ""
    transfer_ms: float = 0.0
    """Loading what a host or shared tier holds, or pulling what another worker does."""
    priority_ms: float = 0.0
    """What the namespace's priority adds to the queue (or, when low, takes off)."""
    replica_ms: float = 0.0
    """Credit for filling another home of a hot prefix: net = saved − queue − pressure − imbalance − transfer − priority
    + replica."""
    kv_use: float | None = None
    """KV use as the watermarks see it, 0…1; None = unknown."""
    prefill_tokens_per_s: float = 0.0
    """Its calibrated rate."""
    pulled_tokens: int = 0
    """Of the matched ones, those that it would pull from another worker."""
    expected_tokens: int = 0
    """Of the matched ones, those on their way to it in other requests: it has not told of them yet."""


class PrefixHeat(msgspec.Struct, omit_defaults=True):
    """Requests of one hot prefix in the second, by worker. `prefix` is a keyed id (16 hex digits), not a block hash."""

    prefix: str
    namespace: str
    pool: str
    tokens: int
    """Of the depth at which prefixes are told apart."""
    by_worker: dict[str, int] = {}
    head_tokens: int = 0
    """As far as its requests agree: what a copy on another worker takes. 0 = unknown."""
    prompt_tokens: int = 0
    """Of the requests' prompts, as the router predicts them."""
    hit_tokens: int = 0
    """Predicted for the chosen workers."""
    queue_ms: float = 0.0
    """Predicted queue on the chosen workers, added up."""
    spills: int = 0
    """Requests that left their preferred worker."""
    placed: int = 0
    """Requests under a placement rule."""
    load: float = 0.0
    """Measured load of all routers as a share of what one worker can do."""
    homes: int = 1
    """Workers that it is spread over by load and rule."""
    holders: list[str] = []
    """Workers that the router believes to hold it, at most HOLDERS_MAX."""


HOLDERS_MAX = 64
"""Holders named of one prefix."""


class PrefixBreaks(msgspec.Struct, omit_defaults=True):
    """Prompts of a namespace that were looked at in a second, and those that an early change cut off their prefix."""

    namespace: str
    pool: str
    template: str = ""
    kind: str = ""
    """Guessed from the class of its characters: one of BREAK_KINDS; "" = of all that were looked at."""
    position_bytes: int = 0
    """Where the line with the change begins in the canonical text: the least of the second."""
    prompts: int = 0
    lost_bytes: int = 0
    """Text behind the change that the prompts shared all the same."""


BREAK_KINDS = ("clock", "uuid", "request_id", "hash", "number", "whitespace", "order", "text")


class ExactState(msgspec.Struct, omit_defaults=True):
    """A pool that names a tokenizer, as a router sees it."""

    status: str = ""
    """`loading`, `exact` or `approximate: <reason>`."""
    files_version: str = ""
    """Of the model's tokenizer and chat template: 16 hexadecimal digits; "" until they are read."""
    different: dict[str, str] = {}
    """Worker that tokenises differently → the probe that showed it."""
    by_text: dict[str, str] = {}
    """Worker whose cache is not known exactly, so that it is matched by text → why."""


class Calibration(msgspec.Struct, array_like=True):
    """What a router has learnt of one worker."""

    tokens_per_s: float
    """Prefill rate; without samples its pool's."""
    samples: int = 0
    """First bytes that taught it since the router's start."""
    age_s: float | None = None
    """Since the last of them."""
    credit: float = 1.0
    """Share of the predicted hit tokens that it delivers, 0…1."""


class RouterState(msgspec.Struct, omit_defaults=True):
    """The router about itself, once a second."""

    snapshot_version: int
    snapshot_age_s: float
    inflight: int
    index_blocks: int
    index_bytes: int
    stream_dropped: int = 0
    """Shipments lost because the buffer was full, since boot."""
    worker_outstanding: dict[str, int] = {}
    worker_states: dict[str, str] = {}
    """Routable state as this router sees it: ready, full (above watermark), drain, maintenance, ejected."""
    epoch: int = 0
    """Every revocation up to it is in force and kept."""
    variants: list[str] = []
    """Ids of the snapshot's variants that this router has in force."""
    exact: dict[str, ExactState] = {}
    """Pool → how its prompts are matched, of the pools that name a tokenizer."""
    calibration: dict[str, Calibration] = {}
    """By worker."""
    inflight_by_namespace: dict[str, int] = {}
    """Requests under way, of the NAMES_TOLD_MAX busiest namespaces."""
    index_blocks_by_tenant: dict[str, int] = {}
    """Remembered blocks that can be matched (approximate mode), of the NAMES_TOLD_MAX largest tenants."""


NAMES_TOLD_MAX = 200
"""Of namespaces and of tenants in one RouterState: some 12 KB."""


class KvRow(msgspec.Struct, omit_defaults=True):
    """KV events of one worker in one second (from the KV-event subscriber)."""

    worker: str
    stored_blocks: int = 0
    removed_blocks: int = 0
    restored_blocks: int = 0
    """Stored within RESTORE_WINDOW_S after having been removed: eviction that cost a recompute."""
    cleared: int = 0
    """AllBlocksCleared events and restarts seen."""
    gaps: int = 0
    lost_messages: int = 0
    resident_blocks: int | None = None
    """Distinct blocks in the cache at the end of the second; None while the count cannot be trusted."""
    state: str = "live"
    """live, rebuilding, degraded (a gap could not be replayed), silent (configured but nothing arrives), down."""
    evicted: dict[str, int] = {}
    """Removed blocks by `<who stored next>EVICTS<whose they were>`; namespaces, UNKNOWN or OTHER. Inferred."""
    restored_of: dict[str, int] = {}
    """`restored_blocks` by namespace."""
    lifetime: Buckets = {}
    """Blocks by the milliseconds from their storing to their removal."""
    restore_gap: Buckets = {}
    """Blocks by the milliseconds from their removal to their return, up to an hour."""


EVICTS = ">"
UNKNOWN_OWNER = ""
"""Of a block whose chain's first block was not seen, or bears a salt of no namespace in force."""
OTHER_OWNER = "*"
"""Of the namespaces beyond those that are told apart in a pool."""


RESTORE_WINDOW_S = 300.0


class Shipment(msgspec.Struct, omit_defaults=True):
    source: str
    """Router id, or `kv-events`."""
    boot: str
    """Random for each process start; with seq it makes the shipment unique."""
    seq: int
    at: float
    """Start of the second, Unix time of the sender."""
    requests: list[RequestRow] = []
    violations: list[Violation] = []
    decisions: list[DecisionSample] = []
    heat: list[PrefixHeat] = []
    router: RouterState | None = None
    kv: list[KvRow] = []
    breaks: list[PrefixBreaks] = []
    recorded: list[RecordedRequest] = []
    """A share of the requests that finished, by whole sessions."""
    recorded_dropped: int = 0
    """Requests of such sessions that the recording had no room for, since the last shipment."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Shipment)


def encode_shipment(shipment: Shipment) -> bytes:
    return _encoder.encode(shipment)


def decode_shipment(data: bytes) -> Shipment:
    """Raises msgspec.DecodeError for anything that is not a shipment."""
    return _decoder.decode(data)
