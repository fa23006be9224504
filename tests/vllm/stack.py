"""A whole Tidemark beside real vLLM workers: `manage.py up` on free ports, driven through its REST API."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]
START_S_MAX = 90.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], Any], *, timeout_s: float, what: str, every_s: float = 0.2) -> Any:
    """The condition's first true value. Raises AssertionError naming `what` when it does not come in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(every_s)
    raise AssertionError(f"not within {timeout_s:.0f} s: {what}")


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


@dataclass
class Stack:
    run_dir: Path
    web_port: int = field(default_factory=free_port)
    router_port: int = field(default_factory=free_port)
    admin_port: int = field(default_factory=free_port)
    valkey_port: int = field(default_factory=free_port)

    @property
    def web(self) -> str:
        return f"http://127.0.0.1:{self.web_port}"

    @property
    def router(self) -> str:
        return f"http://127.0.0.1:{self.router_port}"

    @property
    def admin(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEMARK_", "REDIS_URL"))}
        return kept | {
            "TIDEMARK_RUN_DIR": str(self.run_dir),
            "TIDEMARK_WEB_PORT": str(self.web_port),
            "TIDEMARK_ROUTER_PORT": str(self.router_port),
            "TIDEMARK_ROUTER_ADMIN_PORT": str(self.admin_port),
            "TIDEMARK_VALKEY_PORT": str(self.valkey_port),
            # Holds the lab's model in its folder `model`.
            "TIDEMARK_ROUTER_TOKENIZER_DIR": os.environ.get("VLLM_LAB") or str(Path.home() / ".cache" / "vllm-lab"),
            "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        }

    def start(self) -> None:
        self.log = (self.run_dir / "up.log").open("w")
        self.child = subprocess.Popen(
            [sys.executable, "manage.py", "up"],
            cwd=ROOT,
            env=self.environment(),
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )
        for url in (f"{self.web}/readyz", f"{self.admin}/readyz"):
            wait_until(lambda url=url: answers(url), timeout_s=START_S_MAX, what=f"{url} answers 200")

    def stop(self) -> None:
        self.child.send_signal(signal.SIGINT)
        try:
            self.child.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.child.kill()
        self.log.close()

    def python(self, code: str) -> Any:
        """What `code` assigns to `result`, run inside the control plane's Django, as JSON."""
        program = f"{code}\nimport json as _json\nprint('\\n' + _json.dumps(result))"
        done = subprocess.run(
            [sys.executable, "manage.py", "shell", "-v", "0", "-c", program],
            cwd=ROOT,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.strip().splitlines()[-1])


class Operator:
    """A signed-in administrator's REST client."""

    def __init__(self, stack: Stack) -> None:
        self.client = httpx.Client(base_url=stack.web, timeout=60, trust_env=False)
        password = (stack.run_dir / "admin-password").read_text().strip()
        page = self.client.get("/accounts/login/")
        token = page.cookies["csrftoken"]
        form = {"login": "admin", "password": password, "csrfmiddlewaretoken": token}
        answer = self.client.post("/accounts/login/", data=form, headers={"Referer": f"{stack.web}/"})
        assert answer.status_code == 302, answer.text[:500]

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._send("POST", path, body)

    def patch(self, path: str, body: dict[str, Any]) -> Any:
        return self._send("PATCH", path, body)

    def _send(self, method: str, path: str, body: dict[str, Any]) -> Any:
        headers = {"X-CSRFToken": self.client.cookies["csrftoken"], "If-Match": "*"}
        answer = self.client.request(method, f"/api/v1/{path}", json=body, headers=headers)
        assert answer.status_code in (200, 201, 202), f"{path}: {answer.status_code} {answer.text[:1000]}"
        return answer.json()
