"""Configuration of the control plane from the environment, read once and validated at start.

Every variable is `TIDEMARK_<FIELD>`; secrets may instead be named by a file, `TIDEMARK_<FIELD>_FILE`.
`docs/configuration.md` lists them all.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from router.contract.secrets import FleetKey

BASE_DIR = Path(__file__).resolve().parent.parent


class Config(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="TIDEMARK_", extra="ignore")

    run_dir: Path = BASE_DIR / ".run"
    """Database, generated secrets, logs and the embedded Valkey of the embedded defaults; mode 0700."""
    debug: bool = False
    secret_key: str = ""
    """Django's signing key; generated into the run folder when empty."""
    fleet_key: str = ""
    """Root of salts, key hashes and signatures, hexadecimal, ≥ 32 bytes; generated into the run folder when empty."""
    database_url: str = ""
    """`postgresql://user:password@host:port/name`; empty = SQLite in the run folder."""
    redis_url: str = Field(default="", validation_alias=AliasChoices("TIDEMARK_REDIS_URL", "REDIS_URL"))
    """`redis://`, `rediss://` or `unix://`; empty = the embedded Valkey's, as its supervisor noted it."""
    valkey_port: int = Field(default=6390, ge=1, le=65535)
    """Port of the embedded Valkey on 127.0.0.1."""
    allowed_hosts: Annotated[list[str], NoDecode] = ["localhost", "127.0.0.1", "[::1]"]
    """Comma-separated host names under which the web server may be called."""
    csrf_trusted_origins: Annotated[list[str], NoDecode] = []
    secure_cookies: bool = False
    """True behind TLS: cookies are sent over https only and HSTS is set."""
    worker_api_key: str = ""
    """Bearer token of vLLM workers started with --api-key."""
    worker_networks: Annotated[list[str], NoDecode] = [
        "127.0.0.0/8",
        "::1/128",
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "fc00::/7",
    ]
    """CIDR blocks in which worker addresses must lie (S17)."""
    poll_interval_s: float = 2.0
    log_level: str = "INFO"
    time_zone: str = "UTC"
    """Default display zone; storage and beat are always UTC."""

    @field_validator("allowed_hosts", "csrf_trusted_origins", "worker_networks", mode="before")
    @classmethod
    def split_at_commas(cls, value: object) -> object:
        return [item.strip() for item in value.split(",") if item.strip()] if isinstance(value, str) else value


def load_config() -> Config:
    """The validated configuration. Raises pydantic.ValidationError or OSError with the variable's name."""
    return Config(**_from_files())


def _from_files() -> dict[str, Any]:  # Any: keyword arguments of fields with different types
    """Values of `TIDEMARK_<FIELD>_FILE` variables."""
    found: dict[str, Any] = {}
    for field in ("secret_key", "fleet_key", "database_url", "redis_url", "worker_api_key"):
        path = os.environ.get(f"TIDEMARK_{field.upper()}_FILE")
        if path:
            found["TIDEMARK_REDIS_URL" if field == "redis_url" else field] = Path(path).read_text().strip()
    return found


def secret_in_run_dir(run_dir: Path, name: str, value: str) -> str:
    """`value`, or the content of `run_dir/name`, made at random (hexadecimal, 32 bytes) when it does not exist."""
    if value:
        return value
    path = run_dir / name
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Two roles may start at once: each writes its own file, the first link wins and is complete when it appears.
    candidate = run_dir / f".{name}.{os.getpid()}"
    candidate.touch(mode=0o600)
    candidate.write_text(secrets.token_hex(32))
    with contextlib.suppress(FileExistsError):
        os.link(candidate, path)
    candidate.unlink()
    return path.read_text().strip()


def fleet_key_of(config: Config) -> FleetKey:
    return FleetKey.from_hex(secret_in_run_dir(config.run_dir, "fleet-key", config.fleet_key))


def embedded_valkey_url(config: Config) -> str:
    """URL of the Valkey that `manage.py up` starts; its password is made at random in the run folder."""
    password = secret_in_run_dir(config.run_dir, "valkey-password", "")
    return f"redis://:{password}@127.0.0.1:{config.valkey_port}/0"
