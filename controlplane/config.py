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
from urllib.parse import unquote, urlsplit

from pydantic import AliasChoices, Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from router.contract.live import LIVE_STALE_AFTER_S
from router.contract.secrets import FleetKey

BASE_DIR = Path(__file__).resolve().parent.parent


class Config(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="TIDEMARK_", extra="ignore", hide_input_in_errors=True)

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
    trusted_proxies: int = Field(default=0, ge=0, le=10)
    """Reverse proxies in front of the web server: a client's address is that many from the right in X-Forwarded-For."""
    oidc_issuer: str = ""
    """Issuer of an OpenID Connect provider, `https://…`; empty = passwords only."""
    oidc_client_id: str = ""
    oidc_client_secret: str = ""
    oidc_name: str = "Single sign-on"
    """What the sign-in page calls it."""
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
    webhook_networks: Annotated[list[str], NoDecode] = [
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "fc00::/7",
    ]
    """CIDR blocks in which receivers of webhooks must lie; for receivers in the internet add `0.0.0.0/0,::/0`."""
    email_url: str = ""
    """`smtp://user:password@host:587` (STARTTLS), `smtps://…` (TLS at once), `smtp+plain://…`; empty = no mail."""
    email_from: str = "Tidemark <tidemark@localhost>"
    """Sender of reports."""
    router_url: str = ""
    """Where applications reach the routers, for examples on pages; empty = the router that runs beside this server."""
    router_port: int = Field(default=8080, ge=1, le=65535)
    """Of that router."""
    router_tokenizer_dir: Path | None = None
    """The routers' folder of tokenizers, when this machine has it: templates are then counted in real tokens."""
    poll_interval_s: float = Field(default=2.0, gt=0)
    """Below LIVE_STALE_AFTER_S: routers would otherwise never see a sample that is fresh enough (C51)."""
    api_reads_per_min: int = Field(default=600, ge=1)
    """REST API: reads that one caller may send in a minute; more get 429."""
    api_changes_per_min: int = Field(default=300, ge=1)
    gpu_hour_cost: float | None = Field(default=None, ge=0)
    """What an hour of a worker's GPUs costs, for what saved prefill is worth; None = unknown, and no cost is shown."""
    cost_currency: str = Field(default="USD", min_length=1, max_length=8)
    log_level: str = "INFO"
    time_zone: str = "UTC"
    """Default display zone; storage and beat are always UTC."""

    @field_validator("allowed_hosts", "csrf_trusted_origins", "worker_networks", "webhook_networks", mode="before")
    @classmethod
    def split_at_commas(cls, value: object) -> object:
        return [item.strip() for item in value.split(",") if item.strip()] if isinstance(value, str) else value

    @field_validator("email_url")
    @classmethod
    def names_a_mail_server(cls, value: str) -> str:
        mailer_of(value)
        return value

    @field_validator("poll_interval_s")
    @classmethod
    def fresh_enough(cls, value: float) -> float:
        if value >= LIVE_STALE_AFTER_S:
            raise ValueError(f"must be below {LIVE_STALE_AFTER_S:.0f} s, after which routers hold a sample for stale")
        return value


MAIL_SCHEMES = {"smtp": 587, "smtps": 465, "smtp+plain": 25}
"""With their usual ports."""
MAIL_TIMEOUT_S = 20


def mailer_of(url: str) -> dict[str, Any]:  # Any: options of Django's mail backend
    """Django's MAILERS entry for `TIDEMARK_EMAIL_URL`; "" = one that refuses. Raises ValueError."""
    if not url:
        return {"BACKEND": "controlplane.reports.no_mail.EmailBackend"}
    parts = urlsplit(url)
    if parts.scheme not in MAIL_SCHEMES or not parts.hostname:
        raise ValueError(f"must be {', '.join(f'{name}://host' for name in MAIL_SCHEMES)}")
    return {
        "BACKEND": "django.core.mail.backends.smtp.EmailBackend",
        "OPTIONS": {
            "host": parts.hostname,
            "port": parts.port or MAIL_SCHEMES[parts.scheme],
            "username": unquote(parts.username or ""),
            "password": unquote(parts.password or ""),
            "use_tls": parts.scheme == "smtp",
            "use_ssl": parts.scheme == "smtps",
            "timeout": MAIL_TIMEOUT_S,
        },
    }


def load_config() -> Config:
    """The validated configuration. Raises pydantic.ValidationError or OSError with the variable's name."""
    return Config(**_from_files())


def _from_files() -> dict[str, Any]:  # Any: keyword arguments of fields with different types
    """Values of `TIDEMARK_<FIELD>_FILE` variables."""
    found: dict[str, Any] = {}
    for field in (
        "secret_key",
        "fleet_key",
        "database_url",
        "redis_url",
        "worker_api_key",
        "oidc_client_secret",
        "email_url",
    ):
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
