"""The other proxies, each on one core. A peer that cannot be had is left out by its reason, never silently."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.proxybench.install import (
    ENVOY,
    SGLANG_ROUTER,
    VLLM_ROUTER,
    nginx_program,
    program_of,
    version_of_nginx,
)
from benchmarks.proxybench.kit import HOME, PROXY_CORE, Peer, start_pinned

METRICS_PORT_OFFSET = 60

Start = Callable[[int, Sequence[int]], Peer | str]
"""(port, backend ports) → the running peer, or why there is none."""


def start_nginx(port: int, backends: Sequence[int]) -> Peer | str:
    program = nginx_program()
    if isinstance(program, str):
        return program
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
    argv = [str(program), "-c", str(config), "-p", str(run), "-e", f"{run}/nginx-{port}.err"]
    running = start_pinned(argv, core=PROXY_CORE, name=f"nginx-{port}")
    return Peer("nginx", port, running, version=version_of_nginx(program))


def start_vllm_router(port: int, backends: Sequence[int], *, policy: str = "round_robin") -> Peer | str:
    program = program_of(VLLM_ROUTER)
    if isinstance(program, str):
        return program
    argv = [str(program), *_router_flags(port, backends, policy)]
    running = start_pinned(argv, core=PROXY_CORE, name=f"vllm-router-{port}")
    return Peer(f"vllm-router {policy}", port, running, version=VLLM_ROUTER.version)


def start_sglang_router(port: int, backends: Sequence[int], *, policy: str = "cache_aware") -> Peer | str:
    program = program_of(SGLANG_ROUTER)
    if isinstance(program, str):
        return program
    argv = [str(program), "-m", "sglang_router.launch_router", *_router_flags(port, backends, policy)]
    running = start_pinned(argv, core=PROXY_CORE, name=f"sglang-router-{port}")
    return Peer(f"sglang-router {policy}", port, running, version=SGLANG_ROUTER.version)


def _router_flags(port: int, backends: Sequence[int], policy: str) -> list[str]:
    """The two routers have a common ancestor and share these."""
    return [
        "--host", "127.0.0.1", "--port", str(port), "--worker-urls",
        *(f"http://127.0.0.1:{backend}" for backend in backends), "--policy", policy, "--log-level", "error",
        "--prometheus-port", str(port + METRICS_PORT_OFFSET), "--max-concurrent-requests", "4096",
    ]  # fmt: skip


def start_envoy(port: int, backends: Sequence[int]) -> Peer | str:
    program = program_of(ENVOY)
    if isinstance(program, str):
        return program
    config = HOME / "run" / f"envoy-{port}.json"
    config.write_text(json.dumps(_envoy_config(port, backends)))
    argv = [str(program), "-c", str(config), "--concurrency", "1", "--disable-hot-restart", "-l", "error"]
    return Peer("envoy", port, start_pinned(argv, core=PROXY_CORE, name=f"envoy-{port}"), version=ENVOY.version)


def _envoy_config(port: int, backends: Sequence[int]) -> dict[str, Any]:
    """One listener, round robin over the backends, limits out of the way. Any: JSON."""
    cluster = {
        "name": "workers",
        "type": "STATIC",
        "lb_policy": "ROUND_ROBIN",
        "circuit_breakers": {
            "thresholds": [{"max_connections": 8192, "max_pending_requests": 8192, "max_requests": 8192}]
        },
        "load_assignment": {
            "cluster_name": "workers",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(backend)}} for backend in backends]}],
        },
    }
    everything = {"match": {"prefix": "/"}, "route": {"cluster": "workers", "timeout": "0s"}}
    manager = {
        "@type": _envoy_type("network.http_connection_manager", "HttpConnectionManager"),
        "stat_prefix": "bench",
        "generate_request_id": False,
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [everything]}]},
        "http_filters": [
            {"name": "envoy.filters.http.router", "typed_config": {"@type": _envoy_type("http.router", "Router")}}
        ],
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    listener = {"name": "clients", "address": _address(port), "filter_chains": [{"filters": filters}]}
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def _envoy_type(filter_name: str, message: str) -> str:
    return f"type.googleapis.com/envoy.extensions.filters.{filter_name}.v3.{message}"


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}
