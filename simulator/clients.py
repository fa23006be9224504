"""The applications that a traffic player speaks for: a JSON file of API keys, read once."""

from __future__ import annotations

from pathlib import Path

import msgspec

CLIENTS_MAX = 1_000


class ClientsFileError(ValueError):
    """The keys file cannot be used; the message says why and never shows a key."""


class Client(msgspec.Struct, frozen=True):
    tenant: str
    namespace: str
    """`tenant/slug`."""
    key: str
    model: str
    template: str = ""
    """Prompt template version, sent as `X-Tidemark-Template`; "" = not sent."""
    share: float = 1.0
    """Share of the sessions, relative to the other clients'."""
    session_header: bool = True
    """Whether the application names its sessions (`X-Session-ID`)."""

    def __repr__(self) -> str:
        return f"Client({self.namespace!r})"


def load_clients(path: Path) -> list[Client]:
    """Raises ClientsFileError."""
    try:
        clients = msgspec.json.decode(path.read_bytes(), type=list[Client])
    except OSError as error:
        raise ClientsFileError(f"cannot read {path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise ClientsFileError(f"{path}: {error}") from None
    if not 0 < len(clients) <= CLIENTS_MAX:
        raise ClientsFileError(f"{path} must name 1 to {CLIENTS_MAX} clients, it names {len(clients)}")
    if any(client.share < 0 for client in clients) or not any(client.share for client in clients):
        raise ClientsFileError(f"{path}: shares must not be negative, and one must be above 0")
    return clients
