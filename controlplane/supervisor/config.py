"""Addresses of what `manage.py up` starts, from the environment."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

EVENTS_PORT_OFFSET = 1000
REPLAY_PORT_OFFSET = 2000
"""A simulated worker on port P publishes KV events on P + 1000 and replays them on P + 2000."""


class Addresses(BaseSettings):
    """Every field is `TIDEMARK_<NAME>`. The router reads its own four from the same variables."""

    model_config = SettingsConfigDict(env_prefix="TIDEMARK_", extra="ignore")

    web_host: str = "127.0.0.1"
    """Address of the dashboard and REST API. Any other than loopback belongs behind TLS."""
    web_port: int = Field(default=8000, ge=1, le=65535)
    router_host: str = "127.0.0.1"
    router_port: int = Field(default=8080, ge=1, le=65535)
    router_admin_host: str = "127.0.0.1"
    router_admin_port: int = Field(default=8081, ge=1, le=65535)
    demo_worker_port: int = Field(default=9001, ge=1, le=63000)
    """Port of the first simulated worker; the others follow it."""

    @property
    def web_url(self) -> str:
        return f"http://{reachable(self.web_host)}:{self.web_port}"

    @property
    def router_url(self) -> str:
        return f"http://{reachable(self.router_host)}:{self.router_port}"

    @property
    def router_admin_url(self) -> str:
        return f"http://{reachable(self.router_admin_host)}:{self.router_admin_port}"


def reachable(host: str) -> str:
    """The host by which this machine reaches a server that listens on `host`."""
    if host in ("0.0.0.0", "::", ""):  # noqa: S104  (compared, not bound)
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
