"""The router as it ships: one process, with a snapshot on its disk instead of a control plane."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.proxybench.kit import HOME, PROXY_CORE, Peer, start_pinned
from router.contract.ids import KeyId, NamespaceId, PoolId, TenantId, WorkerId
from router.contract.secrets import FleetKey, new_api_key
from router.contract.snapshot import (
    KeyGrant,
    NamespacePolicy,
    PolicySnapshot,
    PoolPolicy,
    RoutingName,
    TenantGrant,
    WorkerEntry,
    encode_document,
    sign_snapshot,
)

ADMIN_PORT_OFFSET = 60


@dataclass(frozen=True)
class Fleet:
    """What the control plane would know of the mock workers."""

    routing: RoutingName = "tidemark"
    kv_capacity_tokens: int | None = None
    tokenizer: str = ""
    """Folder below `tokenizer_dir`: exact mode."""
    tokenizer_dir: Path | None = None
    block_size: int = 16
    kv_events: Sequence[str] = field(default_factory=tuple)
    """Of each worker, with `kv_replay`; () = none."""
    kv_replay: Sequence[str] = field(default_factory=tuple)
    hash_algorithm: str = ""


def start_ours(port: int, backends: Sequence[int], *, fleet: Fleet | None = None, name: str = "tidemark") -> Peer:
    fleet = fleet or Fleet()
    fleet_hex = FleetKey.generate_hex()
    key_id, secret, key = new_api_key()
    state = Path(tempfile.mkdtemp(prefix="router-", dir=HOME / "run"))
    snapshot = bench_snapshot(FleetKey.from_hex(fleet_hex), key_id, secret, backends, fleet)
    (state / "snapshot.json").write_bytes(snapshot)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TIDEMARK_")}
    env = {
        **inherited,
        "TIDEMARK_FLEET_KEY": fleet_hex,
        "TIDEMARK_ROUTER_PORT": str(port),
        "TIDEMARK_ROUTER_ADMIN_PORT": str(port + ADMIN_PORT_OFFSET),
        "TIDEMARK_ROUTER_STATE_DIR": str(state),
        "TIDEMARK_REDIS_URL": "",
        "TIDEMARK_CONTROL_URL": "",
        "TIDEMARK_LOG_LEVEL": "WARNING",
    }
    if "TIDEMARK_ROUTER_COMPILED" in os.environ:
        env["TIDEMARK_ROUTER_COMPILED"] = os.environ["TIDEMARK_ROUTER_COMPILED"]
    if fleet.tokenizer_dir is not None:
        env["TIDEMARK_ROUTER_TOKENIZER_DIR"] = str(fleet.tokenizer_dir)
    running = start_pinned([sys.executable, "-m", "router"], core=PROXY_CORE, name=f"ours-{port}", env=env)
    running.at_stop(lambda: shutil.rmtree(state, ignore_errors=True))
    return Peer(name, port, running, key)


def ask_ours(peer: Peer, path: str) -> dict[str, Any]:
    """A page of the router's admin port: `/readyz`, `/state`. Any: JSON for people."""
    with urllib.request.urlopen(f"http://127.0.0.1:{peer.port + ADMIN_PORT_OFFSET}{path}", timeout=5) as answer:
        page: dict[str, Any] = json.load(answer)
        return page


def bench_snapshot(fleet_key: FleetKey, key_id: KeyId, secret: str, backends: Sequence[int], fleet: Fleet) -> bytes:
    """A signed document: one tenant with the key's secret, one pool of all backends, model `m`."""
    tenant, namespace, pool = TenantId("bench"), NamespaceId("bench/main"), PoolId("p")
    policy = PoolPolicy(models=("m",), routing=fleet.routing, block_size=fleet.block_size, tokenizer=fleet.tokenizer)
    snapshot = PolicySnapshot(
        tenants={tenant: TenantGrant()},
        keys={key_id: KeyGrant(tenant, namespace, fleet_key.api_key_hash(key_id, secret))},
        namespaces={namespace: NamespacePolicy(tenant=tenant, slug="main", generation_nonce="n")},
        pools={pool: policy},
        workers={WorkerId(f"p/w{at + 1}"): _worker(pool, at, port, fleet) for at, port in enumerate(backends)},
    )
    return encode_document(sign_snapshot(snapshot, version=1, epoch=1, created_at=0.0, fleet_key=fleet_key))


def _worker(pool: PoolId, at: int, port: int, fleet: Fleet) -> WorkerEntry:
    return WorkerEntry(
        pool=pool,
        url=f"http://127.0.0.1:{port}",
        kv_capacity_tokens=fleet.kv_capacity_tokens,
        kv_events=fleet.kv_events[at] if fleet.kv_events else "",
        kv_replay=fleet.kv_replay[at] if fleet.kv_replay else "",
        hash_algorithm=fleet.hash_algorithm,
    )
