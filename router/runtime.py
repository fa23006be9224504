"""The router process put together: the table, the edge, the links, the two ports, and an orderly end."""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import Coroutine, Mapping
from typing import Any

import structlog

from router.adapters.exact_mode import ExactMode
from router.adapters.live_state import run_hello, run_live_state
from router.adapters.peers import PeerExchange
from router.adapters.recording import Recording
from router.adapters.snapshot_disk import SnapshotDisk
from router.adapters.snapshot_source import SnapshotSource
from router.adapters.snapshot_store import SnapshotStore
from router.adapters.telemetry_ship import TelemetryShipper, new_boot
from router.adapters.valkey import Valkey
from router.call import Call
from router.config import Settings
from router.contract.channels import ROUTERS_HASH
from router.contract.hello import RouterHello
from router.contract.ids import WorkerId
from router.contract.live import KvLive, WorkerLive
from router.contract.revocation import REVOCATIONS_PATH, RevocationError, encode_ack, open_revocations, sign_ack
from router.contract.snapshot import PolicySnapshot, SignedSnapshot
from router.contract.telemetry import NAMES_TOLD_MAX, PrefixHeat, RouterState
from router.core.breakers import BreakerWatch
from router.core.model import Grant, NamespaceStale
from router.core.policy_book import STALE
from router.core.revocation import refusal_of
from router.core.table import RoutingTable
from router.core.variants import Settled, settled
from router.explaining import Explainer, RecentDecisions, refusal
from router.http.admin import AdminServer, Posted, json_page
from router.http.answers import JSON
from router.http.errors import EdgeError
from router.http.listening import stop_listening
from router.http.metrics import RouterCollector, render_metrics
from router.http.protocol import DRAIN_QUIET_S, ClientConnection, Edge, EdgeLimits
from router.http.upstream import Upstreams
from router.http.worker_probes import WorkerProbes
from router.logs import loop_exception_handler
from router.native.finder import code_in_use
from router.service import RouterService, ServiceLimits

log = structlog.get_logger("router.runtime")

SWEEP_INTERVAL_S = 0.25
"""How exact timeouts are: all are whole seconds and more."""
LISTEN_BACKLOG = 4096
EVERY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 - to be recognised, not to listen on
METRICS_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class PortInUse(Exception):
    """The message names the variable to set."""


class Runtime:
    """Made inside a running event loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._started_at = time.time()
        self._boot = new_boot()
        rng = random.Random()  # noqa: S311 - jitter, sampling and request ids; nothing secret is drawn from it
        fleet_key = settings.fleet()
        self._valkey = Valkey(settings.redis_url) if settings.redis_url else None
        self.table = RoutingTable(fleet_key=fleet_key, booted_at=self._started_at, rng=rng)
        self._upstreams = Upstreams(
            loop=self._loop, idle_max=settings.router_worker_idle_max, idle_timeout_s=settings.router_idle_timeout_s
        )
        self.telemetry = TelemetryShipper(
            router_id=settings.router_id,
            boot=self._boot,
            valkey=self._valkey,
            clock=time.time,
            policy_version=lambda: self.table.policy_version,
            state=self._state_and_heat,
            breakers=BreakerWatch(secret=fleet_key.subkey("breakers/v1")),
            recording=Recording(fleet_key=fleet_key, per_s=settings.router_recorded_per_s, rng=rng),
        )
        recent = RecentDecisions(self.telemetry)
        self.exact = ExactMode(
            folder=settings.router_tokenizer_dir,
            index_bytes_max=settings.router_exact_index_bytes_max,
            fleet_key=fleet_key,
            worker_api_key=settings.worker_api_key,
            proofs=self.table.proofs,
            lost=self.table.worker_forgotten,
        )
        self.service = RouterService(
            table=self.table,
            upstreams=self._upstreams,
            recorder=recent,
            limits=_service_limits(settings),
            worker_api_key=settings.worker_api_key,
            clock=time.time,
            rng=rng,
            exact=self.exact,
        )
        self.edge = Edge(handler=self.service, limits=_edge_limits(settings), rng=rng)
        self.store = SnapshotStore(
            fleet_key=fleet_key, disk=SnapshotDisk(settings.router_state_dir), apply=self._apply_snapshot
        )
        self.snapshots = SnapshotSource(
            fleet_key=fleet_key,
            store=self.store,
            confirm=lambda asked_at: self.table.confirm_snapshot(lease_now=asked_at),
            hello=self.hello,
            control_url=settings.control_url,
            valkey=self._valkey,
            rng=rng,
        )
        self._probes = WorkerProbes(
            self._upstreams, interval_s=settings.router_probe_interval_s, report=self.table.worker_probed
        )
        self._explainer = Explainer(
            table=self.table,
            recent=recent,
            samples=lambda: self.telemetry.explained,
            exact_prompt=self.service.exact_prompt,
            clock=time.time,
        )
        self._peers = self._peer_exchange(self._valkey) if self._valkey is not None else None
        self._published: tuple[SignedSnapshot, PolicySnapshot] | None = None
        self._settled: Settled | None = None
        self._collector = RouterCollector(
            router_id=settings.router_id,
            totals=self.telemetry.totals,
            state=lambda: self._state(time.time()),
            peers=self._peers.state if self._peers is not None else None,
            exact=self.exact.statuses,
            code=code_in_use(),
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then drain. Raises PortInUse."""
        self._loop.set_exception_handler(loop_exception_handler)
        self.store.load()
        await self.snapshots.catch_up()
        _calm_garbage_collector()
        admin = await self._listen_admin()
        server = await self._listen()
        links = [asyncio.create_task(_forever(name, link)) for name, link in self._links()]
        log.info(
            "router_serves",
            router=self._settings.router_id,
            port=self._settings.router_port,
            admin_port=self._settings.router_admin_port,
            snapshot_version=self.table.policy_version,
            code=code_in_use(),
        )
        try:
            await stop.wait()
            await self._drain(server)
        finally:
            server.close()
            admin.close()
            for link in links:
                link.cancel()
            await asyncio.gather(*links, return_exceptions=True)
            await self._probes.close()
            self._upstreams.close()
            await self.exact.close()
            await self._say_goodbye()

    def hello(self) -> RouterHello:
        return RouterHello(
            router=self._settings.router_id,
            boot=self._boot,
            at=time.time(),
            snapshot_version=self.table.policy_version,
            epoch=self.store.acked_epoch,
            admin_url=self._admin_url(),
            inflight=self.service.inflight,
            started_at=self._started_at,
            last_error=self.store.last_error,
            digest=self.store.current.digest if self.store.current is not None else "",
        )

    def _admin_url(self) -> str:
        settings = self._settings
        # An address that stands for all of this host's means another host to whoever reads it.
        host = socket.gethostname() if settings.router_admin_host in EVERY_ADDRESS else settings.router_admin_host
        origin = f"http://[{host}]" if ":" in host else f"http://{host}"
        return settings.router_admin_url or f"{origin}:{settings.router_admin_port}"

    # the parts

    def _peer_exchange(self, valkey: Valkey) -> PeerExchange:
        return PeerExchange(
            router_id=self._settings.router_id,
            boot=self._boot,
            valkey=valkey,
            own_load=lambda now: self.table.own_load(now=now),
            apply=lambda now, loads: self.table.apply_peers(now=now, loads=loads),
            take_placed=self.table.take_placed,
            hear_placed=lambda placed, now: self.table.hear_placed(placed, now=now),
            snapshot_version=lambda: self.table.policy_version,
            clock=time.time,
        )

    def _links(self) -> list[tuple[str, Coroutine[Any, Any, None]]]:
        links = [
            ("sweep", self._sweep()),
            ("telemetry", self.telemetry.run()),
            ("snapshot_poll", self.snapshots.run_poll()),
            ("snapshot_push", self.snapshots.run_push()),
        ]
        if self._valkey is not None:
            links.append(("live_state", run_live_state(self._valkey, self._apply_live)))
            links.append(("hello", run_hello(self._valkey, self.hello, self._set_other_routers)))
        if self._peers is not None:
            links.append(("peers", self._peers.run()))
        return links

    async def _listen(self) -> asyncio.Server:
        settings = self._settings
        try:
            return await self._loop.create_server(
                lambda: ClientConnection(self.edge),
                settings.router_host,
                settings.router_port,
                backlog=LISTEN_BACKLOG,
                reuse_port=True,
            )
        except OSError as error:
            raise _port_in_use("ROUTER", settings.router_host, settings.router_port, error) from None

    async def _listen_admin(self) -> asyncio.Server:
        settings = self._settings
        server = AdminServer(
            {
                "/healthz": lambda query: json_page(200, {"ok": True}),
                "/readyz": lambda query: self._readiness(),
                "/metrics": lambda query: (200, METRICS_TYPE, render_metrics(self._collector)),
                "/state": lambda query: json_page(200, self._describe()),
                "/explain": self._explain,
            },
            {"/explain": self._explain_body, REVOCATIONS_PATH: self._revoke},
        )
        try:
            return await asyncio.start_server(
                server.handle, settings.router_admin_host, settings.router_admin_port, reuse_port=False
            )
        except OSError as error:
            raise _port_in_use("ROUTER_ADMIN", settings.router_admin_host, settings.router_admin_port, error) from None

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            self._upstreams.sweep()
            self.edge.sweep()
            self._end_stale()
            if self._settled is not None and self._published is not None and time.time() >= self._settled.changes_at:
                log.info("policy_override_ended")
                self._apply_snapshot(*self._published)

    async def _drain(self, server: asyncio.Server) -> None:
        log.info("router_drains", inflight=self.service.inflight)
        self.edge.draining = True
        await stop_listening(server, lambda: ClientConnection(self.edge))
        give_up_at = self._loop.time() + self._settings.router_drain_s
        # A request that is on its way to an idle connection would be lost with it.
        await asyncio.sleep(min(DRAIN_QUIET_S, self._settings.router_drain_s))
        self.edge.close_idle()
        while self.edge.connections and self._loop.time() < give_up_at:  # noqa: ASYNC110 - connections end in many places
            await asyncio.sleep(0.05)
        left = self.service.inflight
        for connection in list(self.edge.connections):
            connection.cancel()
        log.info("router_stops", cut_off=left)

    async def _say_goodbye(self) -> None:
        self.telemetry.close_second(time.time())
        if self._valkey is not None:
            await self.telemetry.send_backlog()
            await self._valkey.remove_from_hash(ROUTERS_HASH, self._settings.router_id)
            if self._peers is not None:
                await self._peers.say_goodbye()
            await self._valkey.close()

    # what the parts tell the table

    def _apply_snapshot(self, document: SignedSnapshot, snapshot: PolicySnapshot) -> None:
        self._published = (document, snapshot)
        self._settled = chosen = settled(snapshot, router=self._settings.router_id, now=time.time())
        snapshot = chosen.snapshot
        self.table.apply_snapshot(document, snapshot, now=time.time(), lease_now=time.monotonic())
        self.exact.follow(snapshot)
        self._upstreams.keep_only({worker.url for worker in snapshot.workers.values()})
        self._probes.follow(snapshot.workers)
        self._end_revoked(snapshot)

    def _end_revoked(self, snapshot: PolicySnapshot) -> None:
        now = time.time()
        for call, grant in self._running():
            refusal = refusal_of(grant, snapshot, now=now)
            if refusal is not None:
                self.service.withdraw(call, refusal)

    def _end_stale(self) -> None:
        """A router that is cut off stops for good what it may not serve on its own word."""
        lease_now = time.monotonic()
        if self.table.snapshot_age_s(lease_now) <= self.table.stale_deny_after_s:
            return
        for call, grant in self._running():
            if grant.policy.on_stale == "deny":
                self.service.withdraw(call, NamespaceStale(STALE))

    def _running(self) -> list[tuple[Call, Grant]]:
        calls = [connection.call for connection in list(self.edge.connections)]
        return [(call, call.grant) for call in calls if isinstance(call, Call) and call.grant is not None]

    async def _revoke(self, posted: Posted) -> tuple[int, bytes, bytes]:
        """Of the admin port: signed revocations, in force and on the disk before they are acknowledged."""
        fleet_key = self._settings.fleet()
        try:
            revocations = open_revocations(posted.body, fleet_key)
        except RevocationError as error:
            log.warning("revocations_refused", why=str(error))
            return json_page(403, {"error": str(error)})
        self.store.revoke(revocations)
        await self.store.keep()
        epochs = self.store.acked(revocations)
        ack = sign_ack(fleet_key, router=self._settings.router_id, boot=self._boot, epochs=epochs)
        return 200, JSON, encode_ack(ack)

    def _apply_live(self, workers: Mapping[WorkerId, WorkerLive], kv: Mapping[WorkerId, KvLive]) -> None:
        self.table.apply_live(now=time.time(), workers=workers, kv=kv)
        if self._peers is not None:
            self._peers.note_samples(workers)

    def _set_other_routers(self, count: int) -> None:
        self.table.other_routers = count

    # what the router says of itself

    def _readiness(self) -> tuple[int, bytes, bytes]:
        if self.edge.draining:
            return json_page(503, {"ready": False, "why": "draining"})
        if self.store.current is None:
            return json_page(503, {"ready": False, "why": "no snapshot", "last_error": self.store.last_error})
        page = {"ready": True, "snapshot_version": self.table.policy_version, "code": code_in_use()}
        return json_page(200, page)

    def _state(self, now: float) -> RouterState:
        state = self.table.state(now=now)
        age_s = self.table.snapshot_age_s(time.monotonic())
        return RouterState(
            snapshot_version=self.table.policy_version,
            snapshot_age_s=age_s if age_s != float("inf") else -1.0,
            epoch=self.store.acked_epoch,
            inflight=self.service.inflight,
            index_blocks=state.index_blocks,
            index_bytes=state.index_bytes,
            stream_dropped=self.telemetry.dropped,
            worker_outstanding={str(worker): count for worker, count in state.worker_outstanding.items()},
            worker_states={str(worker): name for worker, name in state.worker_states.items()},
            variants=list(self._settled.in_force) if self._settled is not None else [],
            exact=self.exact.told(),
            calibration=state.calibration,
            inflight_by_namespace=_largest(Counter(grant.namespace for _, grant in self._running())),
            index_blocks_by_tenant=_largest(self.table.blocks_by_tenant()),
        )

    def _state_and_heat(self, now: float, dropped: int) -> tuple[RouterState, list[PrefixHeat]]:
        return self._state(now), self.table.drain_heat(now=now)

    def _describe(self) -> dict[str, Any]:  # Any: a page for people, of many kinds of values
        now = time.time()
        state = self.table.state(now=now)
        return {
            "router": self._settings.router_id,
            "boot": self._boot,
            "started_at": self._started_at,
            "snapshot": {
                "version": self.table.policy_version,
                "epoch": self.table.epoch,
                "age_s": self.table.snapshot_age_s(time.monotonic()) if self.table.policy_version else None,
                "acked_epoch": self.store.acked_epoch,
                "last_error": self.store.last_error,
                "variants": self._settled.in_force if self._settled is not None else (),
            },
            "draining": self.edge.draining,
            "connections": len(self.edge.connections),
            "inflight": self.service.inflight,
            "valkey_up": self._valkey.up if self._valkey is not None else None,
            "control_up": self.snapshots.control_up,
            "telemetry_dropped": self.telemetry.dropped,
            "peers": self._peers.state() if self._peers is not None else None,
            "exact": self.exact.state(),
            "table": state,
        }

    def _explain(self, query: dict[str, str]) -> tuple[int, bytes, bytes]:
        page = self._explainer.past(query.get("request_id", ""))
        if page is None:
            return json_page(404, {"error": "no decision is kept for this request id"})
        return json_page(200, page)

    async def _explain_body(self, posted: Posted) -> tuple[int, bytes, bytes]:
        query = posted.query
        try:
            page = await self._explainer.would_be(
                posted.body,
                path=query.get("path", "/v1/chat/completions"),
                namespace=query.get("namespace", ""),
                api_key=posted.api_key,
                session=query.get("session"),
            )
        except EdgeError as error:
            return json_page(error.status, refusal(error))
        return json_page(200, page)


def _largest(counts: Mapping[Any, int]) -> dict[str, int]:  # Any: ids of tenants or namespaces
    """The NAMES_TOLD_MAX largest counts above zero."""
    return {str(name): count for name, count in Counter(counts).most_common(NAMES_TOLD_MAX) if count}


def _calm_garbage_collector() -> None:
    """What exists after the start lives on: leave it out of every collection, and collect less often.

    Requests leave no cycles behind on their usual way; the default of 2,000 objects collects every 40 requests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


async def _forever(name: str, link: Coroutine[Any, Any, None]) -> None:
    """A link that fails by mistake is named; the requests go on without it."""
    try:
        await link
    except asyncio.CancelledError:
        raise
    except Exception as error:
        log.error("link_ended_by_mistake", link=name, error=type(error).__name__)


def install_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


def _port_in_use(name: str, host: str, port: int, error: OSError) -> PortInUse:
    return PortInUse(
        f"cannot listen on {host}:{port} ({error.strerror or error}); set TIDEMARK_{name}_PORT or TIDEMARK_{name}_HOST"
    )


def _service_limits(settings: Settings) -> ServiceLimits:
    return ServiceLimits(
        worker_inflight_max=settings.router_worker_inflight_max,
        connect_timeout_s=settings.router_connect_timeout_s,
        stream_head_timeout_s=settings.router_stream_head_timeout_s,
        first_byte_timeout_s=settings.router_first_byte_timeout_s,
        answer_timeout_s=settings.router_answer_timeout_s,
        retry_budget_share=settings.router_retry_budget_share,
    )


def _edge_limits(settings: Settings) -> EdgeLimits:
    return EdgeLimits(
        body_bytes_max=settings.router_body_bytes_max,
        header_bytes_max=settings.router_header_bytes_max,
        headers_max=settings.router_headers_max,
        connections_max=settings.router_connections_max,
        head_timeout_s=settings.router_client_head_timeout_s,
        body_timeout_s=settings.router_client_body_timeout_s,
        keepalive_s=settings.router_client_keepalive_s,
        stalled_s=settings.router_client_stalled_s,
    )
