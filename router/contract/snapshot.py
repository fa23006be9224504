"""PolicySnapshot: everything a router needs to serve, in one signed, versioned document.

The control plane compiles it from its tables; routers hold the last good one on disk and refuse any that is
unsigned, altered or older. Sizes: about 250 bytes a key or namespace, 200 a worker.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Literal

import msgspec

from router.contract.ids import KeyId, NamespaceId, PoolId, TenantId, WorkerId
from router.contract.secrets import FleetKey

FORMAT = 1
"""Raised when a router of an older release could misread the document."""

SNAPSHOT_BYTES_MAX = 64 * 1024 * 1024
"""A router refuses a larger document: about 100,000 keys and namespaces fit well below it."""

Status = Literal["active", "suspended", "revoked"]
WorkerState = Literal["ready", "drain", "maintenance"]
OnStale = Literal["serve", "deny"]
UnknownFields = Literal["drop", "reject", "pass"]
RoutingName = Literal["tidemark", "round_robin", "least_outstanding", "ring"]
Scope = Literal["inference", "explain"]
TransferName = Literal["", "nixl"]


class Watermark(msgspec.Struct, frozen=True):
    """KV-use hysteresis (S0.4): at `high` a worker takes no NEW prefixes, at `low` it takes them again."""

    low: float = 0.65
    high: float = 0.85
    dwell_s: float = 0.0
    """Least time between two changes of the same worker."""
    source: str = "default"
    """Where the values come from, for explanations: `global`, `pool:<slug>`, `namespace:<id>`."""


class TenantGrant(msgspec.Struct, frozen=True):
    status: Status = "active"
    prefill_tokens_per_s: float | None = None
    """Fair share (S11): uncached prompt tokens a second the tenant may cause on each router; None = no limit."""
    prefill_burst_tokens: int | None = None
    """Uncached prompt tokens it may save up; None = ten seconds of its rate."""


class KeyGrant(msgspec.Struct, frozen=True):
    """One API key. `hash` is `FleetKey.api_key_hash`; `expires_at` is in Unix seconds."""

    tenant: TenantId
    namespace: NamespaceId
    hash: str
    status: Status = "active"
    expires_at: float | None = None
    scopes: tuple[Scope, ...] = ("inference",)
    """What it may do beside sending requests: `explain` shows how each of its requests was routed."""


class NamespacePolicy(msgspec.Struct, frozen=True):
    tenant: TenantId
    slug: str
    generation_nonce: str
    generation: int = 1
    generation_at: float = 0.0
    """Unix seconds when this generation began: no cached token of it can be older."""
    status: Status = "active"
    on_stale: OnStale = "serve"
    models: tuple[str, ...] = ()
    """Model names the namespace may use; empty = every model of every pool."""
    unknown_fields: UnknownFields = "drop"
    ttft_slo_ms: float | None = None
    """The namespace's limit for time to first token; None = no objective."""
    watermark: Watermark | None = None
    """Overrides the pool's, else None."""
    templates: tuple[str, ...] = ()
    """`slug@version` of the tenant's published prompt templates a request may name."""
    shed_over_slo: bool = False
    """Refuse (429 + Retry-After) what the best worker is predicted to answer well after `ttft_slo_ms`."""
    priority: int = 0
    """−4 … 4 (S4.2): each step up weighs waiting by √2 more against what the cache saves, each step down less."""
    domain: str = ""
    """The shared cache domain it is in: a key of `PolicySnapshot.domains`; "" = private."""
    shares_public: bool = False
    """Requests that are nothing but a public text (`PolicySnapshot.public_texts`) share a cache with every tenant's."""


class ModelGeneration(msgspec.Struct, frozen=True):
    """A revision of a model on a pool after the first: what was cached under an earlier one cannot be reached."""

    number: int
    """From 2; a model without an entry is in its generation 1."""
    nonce: str
    """Goes into every salt and index key made for the model; "" = its successor is not known yet: refused with 503."""
    at: float = 0.0
    """Unix seconds when it began."""


class CacheDomain(msgspec.Struct, frozen=True):
    """What namespaces share cached prefixes in, by approval of two persons. `router.core.sharing` settles its salt."""

    kind: Literal["project", "group"]
    """`project`: namespaces of one tenant; `group`: a trust group of several."""
    nonce: str
    generation: int = 1
    generation_at: float = 0.0


class PoolPolicy(msgspec.Struct, frozen=True):
    models: tuple[str, ...]
    """Model names this pool serves. A model belongs to one pool."""
    block_size: int = 16
    """Tokens in one KV block of its workers."""
    routing: RoutingName = "tidemark"
    watermark: Watermark = Watermark()
    virtual_nodes: int = 100
    spill_outstanding: int = 16
    """Requests under way on the preferred worker above which load alone may move a request (S2.3)."""
    prefill_tokens_per_s: float | None = None
    """Starting estimate of a worker's prefill rate; learnt online afterwards."""
    tokenizer: str = ""
    """Folder of the model's tokenizer and chat template below the router's TIDEMARK_ROUTER_TOKENIZER_DIR: prefixes are
    then the workers' own blocks. "" = approximate, by text."""
    kv_bytes_per_token: int | None = None
    """Bytes of one token's KV; None = the pool has no connector, only a worker's own device cache counts."""
    transfer_gib_per_s: float | None = None
    """Effective bandwidth of a pull from the shared tier; None = nothing is pulled from there."""
    transfer_setup_ms: float = 0.0
    """Fixed cost of one pull."""
    transfer: TransferName = ""
    """How its workers pull KV from each other, at the bandwidth and set-up above; "" = they do not. Needs a tokenizer:
    only exact prompts tell what a peer holds."""
    guarded: bool = False
    """Its workers run the worker guard: each request to them carries a proof (`router.contract.guard`)."""
    model_generations: dict[str, ModelGeneration] = {}
    """By model name, of the models whose revision was revoked at least once (S3.8)."""


class WorkerEntry(msgspec.Struct, frozen=True):
    pool: PoolId
    url: str
    """`http://host:port`, no path."""
    state: WorkerState = "ready"
    kv_capacity_tokens: int | None = None
    """num_gpu_blocks × block_size as the worker reported, None while unknown."""
    kv_events: str = ""
    """`tcp://host:port` of its KV-event publisher; "" = no events."""
    kv_replay: str = ""
    hash_algorithm: str = ""
    """prefix_caching_hash_algo as the worker reported; "" while unknown."""


class PoolValues(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a variant puts in place of a pool's own values; None leaves them."""

    watermark: Watermark | None = None
    routing: RoutingName | None = None
    virtual_nodes: int | None = None
    spill_outstanding: int | None = None


class NamespaceValues(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a variant puts in place of a namespace's own values; None leaves them."""

    watermark: Watermark | None = None
    priority: int | None = None
    ttft_slo_ms: float | None = None
    shed_over_slo: bool | None = None


class Variant(msgspec.Struct, frozen=True, omit_defaults=True):
    """Values that hold on a share of the routers (a staged roll-out), or until some time (an override).

    Each router picks by `router.core.variants`. A release that does not know variants serves the values beside them.
    """

    id: str
    share: float = 1.0
    """Routers whose place, a hash of variant and router id in 0…1, is below it take the values."""
    until: float | None = None
    """Unix seconds by the router's own clock; None = for as long as the snapshot says so."""
    pools: dict[PoolId, PoolValues] = {}
    namespaces: dict[NamespaceId, NamespaceValues] = {}


class Placement(msgspec.Struct, frozen=True):
    """An operator's rule (S3.6): until some time a prefix has at least so many homes, however little load it brings.

    A release that does not know placements leaves the number to the load, as without a rule.
    """

    namespace: NamespaceId
    pool: PoolId
    prefix: str
    """Keyed id of the prefix, as in `telemetry.PrefixHeat`."""
    homes: int
    until: float
    """Unix seconds by the router's own clock."""


class PolicySnapshot(msgspec.Struct, frozen=True):
    """The content that is digested: equal content, equal digest."""

    tenants: dict[TenantId, TenantGrant]
    keys: dict[KeyId, KeyGrant]
    namespaces: dict[NamespaceId, NamespacePolicy]
    pools: dict[PoolId, PoolPolicy]
    workers: dict[WorkerId, WorkerEntry]
    format: int = FORMAT
    variants: tuple[Variant, ...] = ()
    """Widest scope first: a later one replaces what an earlier one put."""
    domains: dict[str, CacheDomain] = {}
    """Shared cache domains by id: `project:<tenant>/<slug>`, `group:<slug>`."""
    public_texts: tuple[str, ...] = ()
    """Digests of the texts that may be shared by all (`router.contract.public`), sorted."""
    placements: tuple[Placement, ...] = ()


class SignedSnapshot(msgspec.Struct, frozen=True):
    """The document on the wire and on disk. `body` is the JSON text of a PolicySnapshot, signed byte for byte."""

    version: int
    epoch: int
    """Raised by every revocation; a router never goes back to a lower one."""
    created_at: float
    digest: str
    body: str
    signature: str


class SnapshotError(ValueError):
    """Why a snapshot was refused; the message is fit for an operator and holds no secret."""


_encoder = msgspec.json.Encoder(order="sorted")
_body_decoder = msgspec.json.Decoder(PolicySnapshot)
_document_decoder = msgspec.json.Decoder(SignedSnapshot)


def body_text(snapshot: PolicySnapshot) -> str:
    """Canonical JSON: keys sorted, so that equal content gives equal bytes."""
    return _encoder.encode(snapshot).decode()


def digest_of(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def sign_snapshot(
    snapshot: PolicySnapshot, *, version: int, epoch: int, created_at: float, fleet_key: FleetKey
) -> SignedSnapshot:
    body = body_text(snapshot)
    digest = digest_of(body)
    signature = _signature(fleet_key, version, epoch, created_at, digest)
    return SignedSnapshot(version, epoch, created_at, digest, body, signature)


def encode_document(document: SignedSnapshot) -> bytes:
    return _encoder.encode(document)


def open_document(data: bytes, fleet_key: FleetKey) -> tuple[SignedSnapshot, PolicySnapshot]:
    """Decode, verify and parse a document. Raises SnapshotError; whether it is recent is the caller's question."""
    if len(data) > SNAPSHOT_BYTES_MAX:
        raise SnapshotError(f"snapshot of {len(data)} bytes is over the limit of {SNAPSHOT_BYTES_MAX}")
    try:
        document = _document_decoder.decode(data)
    except msgspec.DecodeError:
        raise SnapshotError("snapshot is not readable: truncated or not a snapshot") from None
    expected = _signature(fleet_key, document.version, document.epoch, document.created_at, document.digest)
    if not hmac.compare_digest(expected, document.signature):
        raise SnapshotError("snapshot signature does not fit: altered, or signed with another fleet key")
    if digest_of(document.body) != document.digest:
        raise SnapshotError("snapshot body does not fit its digest")
    try:
        snapshot = _body_decoder.decode(document.body)
    except msgspec.DecodeError as error:
        raise SnapshotError(f"snapshot body is not of this release's form: {error}") from None
    if snapshot.format > FORMAT:
        raise SnapshotError(f"snapshot format {snapshot.format} is newer than this router's {FORMAT}")
    return document, snapshot


def _signature(fleet_key: FleetKey, version: int, epoch: int, created_at: float, digest: str) -> str:
    return fleet_key.mac("snapshot/v1", str(version), str(epoch), repr(created_at), digest).hex()
