"""A small fleet for the core's tests: one `Scene` is a router's table with a clock that the test moves."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import msgspec

from router.contract.ids import KeyId, NamespaceId, PoolId, TemplateRef, TenantId, WorkerId
from router.contract.live import KvLive, WorkerLive
from router.contract.secrets import FleetKey
from router.contract.snapshot import (
    KeyGrant,
    NamespacePolicy,
    PolicySnapshot,
    PoolPolicy,
    TenantGrant,
    WorkerEntry,
    sign_snapshot,
)
from router.core.limits import CoreLimits
from router.core.model import Assessment, Decision, ExactPrompt, Grant, Outcome, Reservation, RoutingRequest
from router.core.table import RoutingTable

FLEET_KEY = FleetKey(bytes(range(32)))
POOL = PoolId("llama")
MODEL = "llama-8b"


def worker_id(number: int, pool: str = POOL) -> WorkerId:
    return WorkerId(f"{pool}/w{number}")


def api_key(tenant: str) -> str:
    """The one key of a scene's tenant, readable in failures."""
    return f"tm_{tenant.ljust(12, '0')[:12]}_{tenant.ljust(43, 'x')[:43]}"


def key_id(tenant: str) -> KeyId:
    return KeyId(tenant.ljust(12, "0")[:12])


def namespace_id(tenant: str) -> NamespaceId:
    return NamespaceId(f"{tenant}/main")


def snapshot(
    *,
    tenants: tuple[str, ...] = ("alice", "charlie"),
    workers: int = 4,
    pool: PoolPolicy | None = None,
    states: dict[int, str] | None = None,
    namespace: dict[str, object] | None = None,
    capacity_tokens: int | None = None,
) -> PolicySnapshot:
    """Each tenant has one key and one namespace `<tenant>/main`; one pool serves MODEL."""
    states = states or {}
    policy = dict(namespace or {})
    return PolicySnapshot(
        tenants={TenantId(tenant): TenantGrant() for tenant in tenants},
        keys={
            key_id(tenant): KeyGrant(
                TenantId(tenant),
                namespace_id(tenant),
                FLEET_KEY.api_key_hash(key_id(tenant), api_key(tenant).split("_", 2)[2]),
            )
            for tenant in tenants
        },
        namespaces={
            namespace_id(tenant): NamespacePolicy(TenantId(tenant), "main", f"nonce-{tenant}", **policy)  # type: ignore[arg-type]
            for tenant in tenants
        },
        pools={POOL: pool or PoolPolicy(models=(MODEL,))},
        workers={
            worker_id(number): WorkerEntry(
                POOL,
                f"http://10.0.0.{number + 1}:8000",
                states.get(number, "ready"),  # type: ignore[arg-type]
                kv_capacity_tokens=capacity_tokens,
            )
            for number in range(workers)
        },
    )


@dataclass
class Scene:
    policy: PolicySnapshot = field(default_factory=snapshot)
    now: float = 1000.0
    booted_at: float = 900.0
    limits: CoreLimits = field(default_factory=CoreLimits)
    seed: int = 1
    version: int = 0
    table: RoutingTable = field(init=False)

    def __post_init__(self) -> None:
        self.table = RoutingTable(
            fleet_key=FLEET_KEY, booted_at=self.booted_at, limits=self.limits, rng=random.Random(self.seed)
        )
        self.publish(self.policy)

    def publish(self, policy: PolicySnapshot) -> None:
        self.policy = policy
        self.version += 1
        document = sign_snapshot(policy, version=self.version, epoch=1, created_at=self.now, fleet_key=FLEET_KEY)
        self.table.apply_snapshot(document, policy, now=self.now)

    def set_state(self, number: int, state: str) -> None:
        workers = dict(self.policy.workers)
        entry = workers[worker_id(number)]
        workers[worker_id(number)] = msgspec.structs.replace(entry, state=state)
        self.publish(msgspec.structs.replace(self.policy, workers=workers))

    def grant(self, tenant: str = "alice", model: str = MODEL) -> Grant:
        return self.table.resolve(api_key=api_key(tenant), model=model, now=self.now)

    def request(
        self,
        text: bytes | None,
        tenant: str = "alice",
        *,
        session: str | None = None,
        exclude: frozenset[WorkerId] = frozenset(),
        exact: ExactPrompt | None = None,
        form: str = "chat",
    ) -> RoutingRequest:
        grant = self.grant(tenant)
        fingerprint = None if text is None else self.table.fingerprint(grant, text, template=TemplateRef(""))
        return RoutingRequest("r", grant, fingerprint, session=session, form=form, exclude=exclude, exact=exact)

    def choose(
        self,
        text: bytes | None,
        tenant: str = "alice",
        *,
        session: str | None = None,
        exclude: frozenset[WorkerId] = frozenset(),
    ) -> Decision:
        request = self.request(text, tenant, session=session, exclude=exclude)
        return self.table.choose(request, now=self.now, explain=True)

    def start(self, text: bytes | None, tenant: str = "alice", *, session: str | None = None) -> Reservation:
        """Choose and reserve; the request stays under way."""
        return self.table.reserve(self.choose(text, tenant, session=session), now=self.now)

    def start_on(self, number: int, text: bytes | None, tenant: str = "alice") -> Reservation:
        """Reserve on a given worker, as if the choice had fallen there."""
        decision = self.choose(text, tenant)
        decision.worker = worker_id(number)
        return self.table.reserve(decision, now=self.now)

    def finish(
        self,
        reservation: Reservation,
        *,
        cached: int | None = None,
        prompt: int | None = None,
        completion: int | None = 10,
        ttft_s: float = 0.0,
    ) -> Assessment:
        """First byte `ttft_s` after now, then a good answer. `prompt` defaults to 4 bytes a token."""
        if prompt is None:
            prompt = max(1, text_bytes(reservation) // 4)
        self.now += ttft_s
        self.table.first_byte(reservation, now=self.now)
        outcome = Outcome(True, prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)
        return self.table.release(reservation, outcome, now=self.now)

    def serve(
        self, text: bytes | None, tenant: str = "alice", *, session: str | None = None, cached: int | None = None
    ) -> WorkerId:
        """One request from decision to answer; returns its worker."""
        reservation = self.start(text, tenant, session=session)
        self.finish(reservation, cached=cached)
        return reservation.decision.worker

    def live(self, kv_use: dict[int, float | None], *, at: float | None = None) -> None:
        """One poll of the given workers."""
        at = self.now if at is None else at
        samples = {
            worker_id(number): WorkerLive(at=at, running=0, waiting=0, kv_use=use) for number, use in kv_use.items()
        }
        self.table.apply_live(now=self.now, workers=samples, kv={})

    def fresh_caches(self) -> None:
        """Every worker's cache is known to have begun empty just now; the clock then moves past any skew."""
        kv = {worker: KvLive(at=self.now, cache_epoch_at=self.now) for worker in self.policy.workers}
        self.table.apply_live(now=self.now, workers={}, kv=kv)
        self.now += 2.0


def text_bytes(reservation: Reservation) -> int:
    fingerprint = reservation.decision.request.fingerprint
    return 4000 if fingerprint is None else fingerprint.text_bytes


def prompt(seed: int, size: int, *, head: bytes = b"") -> bytes:
    """`size` bytes of distinct text behind a shared head."""
    return head + random.Random(seed).randbytes(max(0, size - len(head)))
