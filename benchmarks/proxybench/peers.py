"""What is measured: ours as it ships, nginx and vllm-router as peers. A peer that cannot be had is left out, named."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.proxybench.kit import HOME, PROXY_CORE, Pinned, start_pinned
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

VLLM_ROUTER = "vllm-router==0.1.17"


@dataclass
class Peer:
    name: str
    port: int
    running: Pinned
    key: str | None = None


Start = Callable[[int, Sequence[int]], Peer | str]
"""(port, backend ports) → the running peer, or why there is none."""


def start_ours(port: int, backends: Sequence[int], *, routing: RoutingName = "tidemark") -> Peer | str:
    fleet_hex = FleetKey.generate_hex()
    key_id, secret, key = new_api_key()
    state = Path(tempfile.mkdtemp(prefix="router-", dir=HOME / "run"))
    snapshot = bench_snapshot(FleetKey.from_hex(fleet_hex), key_id, secret, backends, routing)
    (state / "snapshot.json").write_bytes(snapshot)
    env = {
        "TIDEMARK_FLEET_KEY": fleet_hex,
        "TIDEMARK_ROUTER_PORT": str(port),
        "TIDEMARK_ROUTER_ADMIN_PORT": str(port + 500),
        "TIDEMARK_ROUTER_STATE_DIR": str(state),
        "TIDEMARK_REDIS_URL": "",
        "TIDEMARK_CONTROL_URL": "",
        "TIDEMARK_LOG_LEVEL": "WARNING",
    }
    running = start_pinned([sys.executable, "-m", "router"], core=PROXY_CORE, name=f"ours-{port}", env=env)
    return Peer(f"tidemark {routing}", port, running, key)


def bench_snapshot(fleet: FleetKey, key_id: KeyId, secret: str, backends: Sequence[int], routing: RoutingName) -> bytes:
    """A signed document: one tenant with the key's secret, one pool of all backends, model `m`."""
    tenant, namespace, pool = TenantId("bench"), NamespaceId("bench/main"), PoolId("p")
    snapshot = PolicySnapshot(
        tenants={tenant: TenantGrant()},
        keys={key_id: KeyGrant(tenant, namespace, fleet.api_key_hash(key_id, secret))},
        namespaces={namespace: NamespacePolicy(tenant=tenant, slug="main", generation_nonce="n")},
        pools={pool: PoolPolicy(models=("m",), routing=routing)},
        workers={
            WorkerId(f"p/w{i}"): WorkerEntry(pool=pool, url=f"http://127.0.0.1:{port}")
            for i, port in enumerate(backends, 1)
        },
    )
    return encode_document(sign_snapshot(snapshot, version=1, epoch=1, created_at=0.0, fleet_key=fleet))


def start_nginx(port: int, backends: Sequence[int]) -> Peer | str:
    program = _nginx_program()
    if program is None:
        return "nginx is not installed (apt install nginx-light) and cannot be without root"
    run = HOME / "run"
    servers = " ".join(f"server 127.0.0.1:{backend};" for backend in backends)
    temporary = " ".join(
        f"{kind}_temp_path {run}/nginx-{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = run / f"nginx-{port}.conf"
    config.write_text(
        f"worker_processes 1; daemon off; pid {run}/nginx-{port}.pid; error_log {run}/nginx-{port}.err warn;\n"
        "events { worker_connections 8192; }\n"
        f"http {{ access_log off; {temporary} client_max_body_size 64m; client_body_buffer_size 256k;\n"
        'keepalive_requests 100000000; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;\n'
        f"upstream up {{ {servers} keepalive 512; keepalive_requests 100000000; }}\n"
        f"server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ proxy_pass http://up; }} }} }}\n"
    )
    argv = [program, "-c", str(config), "-p", str(run), "-e", f"{run}/nginx-{port}.err"]
    return Peer("nginx", port, start_pinned(argv, core=PROXY_CORE, name=f"nginx-{port}"))


def _nginx_program() -> str | None:
    found = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "install", "-y", "-q", "nginx-light"], capture_output=True, timeout=300)
        found = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
    return found


def start_vllm_router(port: int, backends: Sequence[int]) -> Peer | str:
    program = HOME / "venv-vllm-router" / "bin" / "vllm-router"
    if not program.exists():
        why = _install_vllm_router(program.parent.parent)
        if why:
            return why
    argv = [
        str(program), "--host", "127.0.0.1", "--port", str(port), "--worker-urls",
        *(f"http://127.0.0.1:{backend}" for backend in backends), "--policy", "round_robin", "--log-level", "error",
        "--prometheus-port", str(port + 500), "--max-concurrent-requests", "4096",
    ]  # fmt: skip
    return Peer("vllm-router", port, start_pinned(argv, core=PROXY_CORE, name=f"vllm-router-{port}"))


def _install_vllm_router(folder: Path) -> str:
    """ "" when it worked, else why not."""
    for argv in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", VLLM_ROUTER],
    ):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=600)
        if done.returncode:
            return f"{VLLM_ROUTER} could not be installed: {done.stderr.strip().splitlines()[-1:]}"
    return ""
