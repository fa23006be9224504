"""A recording as a file: its head, then one request a line. The form is `router.contract.recorded`'s."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from gzip import GzipFile
from pathlib import Path
from typing import IO, Protocol

import msgspec

from controlplane.telemetry.breaks import breakers
from controlplane.telemetry.windows import Scope
from router.contract.recorded import Broken, RecordedRequest, RecordingHead

BYTES_A_TOKEN = 4
"""As `breaks` counts lost text."""


class Told(Protocol):
    @property
    def routers(self) -> int: ...

    @property
    def dropped(self) -> int: ...


def write_file(path: Path, requests: Sequence[RecordedRequest], *, scope: Scope, extent: Told) -> None:
    """Replaces the file when all of it is written; gzip where its name ends so. `requests` by time, not empty."""
    head = RecordingHead(
        since=requests[0].at, until=requests[-1].at, pool=scope.pool, routers=extent.routers, dropped=extent.dropped,
        broken=_broken(scope),
    )  # fmt: skip
    part = path.with_name(path.name + ".part")
    with part.open("wb") as plain:
        if path.suffix == ".gz":
            with GzipFile(fileobj=plain, mode="wb", compresslevel=3) as packed:
                _write(packed, head, requests)
        else:
            _write(plain, head, requests)
    part.replace(path)


def _write(out: GzipFile | IO[bytes], head: RecordingHead, requests: Sequence[RecordedRequest]) -> None:
    encoder = msgspec.json.Encoder()
    out.write(encoder.encode(head) + b"\n")
    for request in requests:
        out.write(encoder.encode(request) + b"\n")


def _broken(scope: Scope) -> list[Broken]:
    """Of each namespace and template the change that costs most."""
    tenants = frozenset({scope.tenant}) if scope.tenant else None
    found: dict[tuple[str, str], Broken] = {}
    for row in breakers(now=scope.to, window=scope.to - scope.from_ + timedelta(hours=1), tenants=tenants):
        if scope.pool in ("", row.pool) and scope.namespace in ("", row.namespace):
            found.setdefault(
                (row.namespace, row.template),
                Broken(
                    namespace=row.namespace, template=row.template, prompts=row.prompts, looked_at=row.looked_at,
                    position_bytes=row.position_bytes, lost_bytes=row.lost_tokens_mean * BYTES_A_TOKEN,
                ),
            )  # fmt: skip
    return list(found.values())
