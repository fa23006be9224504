"""The router's settings: read once from the environment, checked at start, each documented by its comment."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from router.contract.secrets import FleetKey, FleetKeyError

ENV_PREFIX = "TIDEMARK_"
MIB = 1024 * 1024


class ConfigError(Exception):
    """A setting is missing or wrong; the message names the variable."""


class Settings(BaseSettings):
    """Every field is `TIDEMARK_<NAME>` in the environment; `*_file` names a file that holds the secret."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="ignore", hide_input_in_errors=True)

    fleet_key: str = Field(default="", repr=False)
    """Hexadecimal, at least 32 bytes; shared with the control plane."""
    fleet_key_file: Path | None = None
    redis_url: str = Field(default="", repr=False)
    """Valkey/Redis for push, live state and telemetry; empty = none, the router serves all the same."""
    control_url: str = ""
    """Control plane for the snapshot poll, `http://host:port`; empty = no poll."""
    worker_api_key: str = Field(default="", repr=False)
    """Bearer token for the workers' own `--api-key`; empty = none is sent."""
    worker_api_key_file: Path | None = None

    router_id: str = Field(default_factory=socket.gethostname, max_length=128)
    router_host: str = "127.0.0.1"
    router_port: int = Field(default=8080, ge=1, le=65535)
    router_admin_host: str = "127.0.0.1"
    router_admin_port: int = Field(default=8081, ge=1, le=65535)
    router_admin_url: str = ""
    """Where the control plane reaches the admin port; "" = `http://<admin host>:<admin port>`."""
    router_state_dir: Path = Path(".run/router")
    """Holds the disk copy of the snapshot: what makes a start without control plane possible."""

    router_tokenizer_dir: Path | None = None
    """Holds one folder for each tokenizer that a pool names: exact mode. None = every pool is approximate."""
    router_exact_index_bytes_max: int = Field(default=512 * MIB, ge=MIB)
    """What workers' KV events tell, 128 bytes for each distinct block: 4M blocks."""

    router_recorded_per_s: float = Field(default=20.0, ge=0, le=1000)
    """Requests recorded a second without their text, by whole sessions, for what-if questions; 0 = none."""

    router_body_bytes_max: int = Field(default=32 * MIB, ge=1024)
    """A 1M-token prompt is about 4 MiB of text; images come inline."""
    router_header_bytes_max: int = Field(default=32 * 1024, ge=1024)
    router_headers_max: int = Field(default=100, ge=10)
    router_connections_max: int = Field(default=10_000, ge=1)
    router_worker_inflight_max: int = Field(default=1024, ge=1)
    """Requests under way to one worker; further ones go elsewhere or get 503."""
    router_worker_idle_max: int = Field(default=256, ge=0)
    """Idle keep-alive connections held to one worker."""

    router_client_head_timeout_s: float = Field(default=10.0, gt=0)
    router_client_body_timeout_s: float = Field(default=60.0, gt=0)
    router_client_keepalive_s: float = Field(default=75.0, gt=0)
    router_client_stalled_s: float = Field(default=60.0, gt=0)
    """A client that reads nothing for so long while 256 KiB wait for it is cut off."""
    router_connect_timeout_s: float = Field(default=2.0, gt=0)
    router_stream_head_timeout_s: float = Field(default=10.0, gt=0)
    """A worker sends a stream's head within milliseconds, before prefill; silence means it is stopped."""
    router_first_byte_timeout_s: float = Field(default=120.0, gt=0)
    """Queue and prefill of a stream: from sending the request to the first body byte."""
    router_answer_timeout_s: float = Field(default=600.0, gt=0)
    """A non-streamed answer arrives only when all of it is generated."""
    router_idle_timeout_s: float = Field(default=30.0, gt=0)
    """Silence inside an answer that has begun."""
    router_probe_interval_s: float = Field(default=1.0, ge=0)
    """Between two questions to each worker's `/health`; 0 = none are asked, and only failed requests tell."""
    router_retry_budget_share: float = Field(default=0.2, ge=0, le=1)
    """Retries ÷ requests: keeps a fleet in trouble from being asked twice for everything (A3)."""
    router_drain_s: float = Field(default=30.0, ge=0)
    """After SIGTERM requests under way may take so long to finish."""

    router_compiled: Literal["auto", "off", "require"] = "auto"
    """Hot modules as native code: where a build fits the sources, never, or not without (`router/native`)."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    @model_validator(mode="after")
    def _read_secret_files(self) -> Settings:
        self.fleet_key = self.fleet_key or _secret_from(self.fleet_key_file, "FLEET_KEY_FILE")
        self.worker_api_key = self.worker_api_key or _secret_from(self.worker_api_key_file, "WORKER_API_KEY_FILE")
        if not self.fleet_key:
            raise ValueError(f"set {ENV_PREFIX}FLEET_KEY or {ENV_PREFIX}FLEET_KEY_FILE to the fleet key (hexadecimal)")
        if self.control_url and not self.control_url.startswith(("http://", "https://")):
            raise ValueError(f"{ENV_PREFIX}CONTROL_URL must begin with http:// or https://")
        if any(ord(character) < 33 for character in self.worker_api_key):
            raise ValueError(f"{ENV_PREFIX}WORKER_API_KEY must not contain spaces or control characters")
        return self

    def fleet(self) -> FleetKey:
        return FleetKey.from_hex(self.fleet_key)


def load_settings() -> Settings:
    """Raises ConfigError with one line for each wrong variable."""
    try:
        settings = Settings()
        settings.fleet()
    except ValidationError as error:
        raise ConfigError("\n".join(_line(item["loc"], item["msg"]) for item in error.errors())) from None
    except FleetKeyError as error:
        raise ConfigError(f"{ENV_PREFIX}FLEET_KEY: {error}") from None
    return settings


def _line(location: tuple[int | str, ...], message: str) -> str:
    message = message.removeprefix("Value error, ")
    return f"{ENV_PREFIX}{str(location[0]).upper()}: {message}" if location else message


def _secret_from(path: Path | None, name: str) -> str:
    if path is None:
        return ""
    try:
        return path.read_text().strip()
    except OSError as error:
        raise ValueError(f"{ENV_PREFIX}{name}: cannot read {path}: {error.strerror}") from None
