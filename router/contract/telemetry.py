"""What routers and the KV-event subscriber ship to the control plane: one-second aggregates, no prompt text.

Entries go to the stream `channels.TELEMETRY_STREAM` with one field `m`: msgpack of a `Shipment`. A shipment is
identified by (source, boot, seq); the ingester applies each at most once.
"""

from __future__ import annotations

import msgspec

from router.contract.histogram import Buckets

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


class Violation(msgspec.Struct, omit_defaults=True):
    """One answer with more cached tokens than the namespace's own history on that worker allows (S8)."""

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
    """Loading what a host or shared tier holds."""
    priority_ms: float = 0.0
    """What the namespace's priority adds to the queue (or, when low, takes off)."""
    replica_ms: float = 0.0
    """Credit for filling another home of a hot prefix: net = saved − queue − pressure − imbalance − transfer − priority
    + replica."""


class PrefixHeat(msgspec.Struct, omit_defaults=True):
    """Requests of one hot prefix in the second, by worker. `prefix` is a keyed id (16 hex digits), not a block hash."""

    prefix: str
    namespace: str
    pool: str
    tokens: int
    by_worker: dict[str, int] = {}


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


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Shipment)


def encode_shipment(shipment: Shipment) -> bytes:
    return _encoder.encode(shipment)


def decode_shipment(data: bytes) -> Shipment:
    """Raises msgspec.DecodeError for anything that is not a shipment."""
    return _decoder.decode(data)
