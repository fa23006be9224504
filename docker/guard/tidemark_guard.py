"""Worker guard: nobody reaches a vLLM worker around the router (S26).

    TIDEMARK_GUARD_KEY_FILE=/run/secrets/guard-key PYTHONPATH=/opt/tidemark \\
        vllm serve MODEL … --middleware tidemark_guard.TidemarkGuard

One file, standard library only, for the worker's own Python. What a request must show:

| path | needs |
| --- | --- |
| `OPEN_PATHS`, GET or HEAD | nothing: health, metrics, and what the worker says of itself |
| `SALTED_PATHS`, POST | a JSON object with exactly one `cache_salt`, and a valid proof for that salt |
| `UNSALTED_PATHS`, POST | a valid proof for the empty salt |
| every other path, method or websocket | refused, proof or not: developer endpoints and `/invocations` among them |

A proof is the header `x-tidemark-proof: 1.<epoch>.<issued>.<mac>` as `router/contract/guard.py` makes it. It is valid
when its MAC fits one of the keys, it was issued within `TIDEMARK_GUARD_AGE_S` of this machine's clock, and its epoch is
not revoked: once a proof of a higher epoch was seen, older epochs are taken for `TIDEMARK_GUARD_GRACE_S` more, the time
in which every router learns of a revocation. The control plane's polls carry proofs too, so a router that is cut off
from revocations is refused soon after one, whether or not anybody else sends requests.

Environment, read once; a worker whose guard is not configured does not start:

    TIDEMARK_GUARD_KEY, TIDEMARK_GUARD_KEY_FILE   key as 64 hexadecimal digits; several by comma or line, to change it
    TIDEMARK_GUARD_AGE_S      120       a proof's greatest age, and half of it into the future
    TIDEMARK_GUARD_GRACE_S    10        how long an older epoch is taken after a higher one was seen
    TIDEMARK_GUARD_EPOCH      0         the lowest epoch taken
    TIDEMARK_GUARD_BODY_BYTES 67108864  larger bodies are refused with 413

It logs nothing: neither salts nor prompts pass through any other hands.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import json
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

OPEN_PATHS = frozenset(
    ("/health", "/ping", "/load", "/version", "/metrics", "/metrics/", "/v1/models", "/kv_event_sources")
)
SALTED_PATHS = frozenset(("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings"))
UNSALTED_PATHS = frozenset(("/tokenize",))
PROOF_HEADER = b"x-tidemark-proof"
_PROOF = re.compile(r"1\.([0-9]{1,18})\.([0-9]{1,15})\.([A-Za-z0-9_-]{43})")
KEY_BYTES = 32

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Refused(Exception):
    """Why a request does not pass; `code` is for programs, neither names a salt."""

    def __init__(self, code: str, message: str, *, status: int = 403) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


class Proofs:
    """Which proofs are valid. Only what a valid proof says changes anything here."""

    def __init__(
        self,
        keys: Sequence[bytes],
        *,
        age_s_max: float = 120.0,
        grace_s: float = 10.0,
        epoch_min: int = 0,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys = tuple(keys)
        self._age_s_max = age_s_max
        self._grace_s = grace_s
        self._clock = clock
        self._monotonic = monotonic
        self._epoch_min = epoch_min
        """Lowest epoch taken."""
        self._rising: list[tuple[int, float]] = []
        """(higher epoch seen, monotonic second at which lower ones are refused), both rising; short by its grace."""

    def check(self, text: str, salt: str) -> None:
        """Raises Refused."""
        parts = _PROOF.fullmatch(text)
        if parts is None:
            raise Refused("no_proof", "This worker takes requests of its routers only.")
        epoch, issued = int(parts[1]), int(parts[2])
        given = base64.urlsafe_b64decode(parts[3] + "=")
        data = framed("guard/v1", parts[1], parts[2], salt)
        # Every key is tried, so that the time says nothing.
        fits = [hmac.compare_digest(given, hmac.digest(key, data, hashlib.sha256)) for key in self._keys]
        if not any(fits):
            raise Refused("foreign_proof", "The proof is not of this pool, or not for this salt.")
        age_s = self._clock() - issued
        if not -self._age_s_max / 2 <= age_s <= self._age_s_max:
            raise Refused("old_proof", "The proof is too old, or the clocks differ.")
        self._check_epoch(epoch)

    def _check_epoch(self, epoch: int) -> None:
        now = self._monotonic()
        while self._rising and now >= self._rising[0][1]:
            self._epoch_min = self._rising.pop(0)[0]
        if epoch < self._epoch_min:
            raise Refused("revoked_epoch", "The proof is of an epoch that a revocation has ended.")
        highest = self._rising[-1][0] if self._rising else self._epoch_min
        if epoch > highest:
            self._rising.append((epoch, now + self._grace_s))


class TidemarkGuard:
    """Pure ASGI middleware. A body is read whole before it passes, since the salt may stand anywhere in it."""

    def __init__(self, app: App, *, proofs: Proofs | None = None, body_bytes_max: int | None = None) -> None:
        self._app = app
        self._proofs = proofs or proofs_from(os.environ)
        self._body_bytes_max = body_bytes_max or int(os.environ.get("TIDEMARK_GUARD_BODY_BYTES", 64 * 1024 * 1024))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or _is_open(scope):
            self._learn(scope)
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008, "reason": "Not offered."})
            return
        try:
            body = await self._checked_body(scope, receive)
        except Refused as refusal:
            await _refuse(send, refusal)
            return
        await self._app(scope, _replayed(body, receive), send)

    def _learn(self, scope: Scope) -> None:
        """A poll that carries a proof tells of the epoch, so that a revocation is known without any request."""
        if scope["type"] == "http" and (proof := _only_header(scope, PROOF_HEADER)):
            with contextlib.suppress(Refused):
                self._proofs.check(proof, "")

    async def _checked_body(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body of a request that may pass. Raises Refused."""
        path = scope["path"]
        if scope["method"] != "POST" or path not in SALTED_PATHS | UNSALTED_PATHS:
            raise Refused("not_offered", "This worker does not offer that to anybody.")
        proof = _only_header(scope, PROOF_HEADER)
        if _PROOF.fullmatch(proof) is None:
            raise Refused("no_proof", "This worker takes requests of its routers only.")
        body = await _whole_body(receive, self._body_bytes_max)
        self._proofs.check(proof, _salt_of(body) if path in SALTED_PATHS else "")
        return body


def proofs_from(environment: Mapping[str, str]) -> Proofs:
    """Raises RuntimeError where the environment names no usable key."""
    text = environment.get("TIDEMARK_GUARD_KEY", "")
    path = environment.get("TIDEMARK_GUARD_KEY_FILE", "")
    if path:
        with open(path, encoding="ascii") as file:
            text = file.read()
    try:
        keys = [bytes.fromhex(part) for part in re.split(r"[,\s]+", text.strip()) if part]
    except ValueError:
        keys = []
    if not keys or any(len(key) != KEY_BYTES for key in keys):
        raise RuntimeError("TIDEMARK_GUARD_KEY or TIDEMARK_GUARD_KEY_FILE must hold 64 hexadecimal digits")
    return Proofs(
        keys,
        age_s_max=float(environment.get("TIDEMARK_GUARD_AGE_S", 120)),
        grace_s=float(environment.get("TIDEMARK_GUARD_GRACE_S", 10)),
        epoch_min=int(environment.get("TIDEMARK_GUARD_EPOCH", 0)),
    )


def framed(*parts: str) -> bytes:
    """Each part behind its length (4 bytes, big-endian), as in `router/contract/secrets.py`."""
    return b"".join(len(data).to_bytes(4, "big") + data for data in (part.encode() for part in parts))


def _is_open(scope: Scope) -> bool:
    return scope["type"] == "http" and scope["method"] in ("GET", "HEAD") and scope["path"] in OPEN_PATHS


def _only_header(scope: Scope, name: bytes) -> str:
    """Its value when it stands there once, else ""."""
    values = [value for key, value in scope["headers"] if key.lower() == name]
    return values[0].decode("latin-1") if len(values) == 1 else ""


async def _whole_body(receive: Receive, bytes_max: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused("left", "The client left.", status=400)
        body += message.get("body", b"")
        if len(body) > bytes_max:
            raise Refused("too_large", f"A body has at most {bytes_max} bytes.", status=413)
        if not message.get("more_body", False):
            return bytes(body)


def _salt_of(body: bytes) -> str:
    """The one `cache_salt` of the outermost object. Names are compared as JSON decodes them. Raises Refused."""
    try:
        top = json.loads(body, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError, binascii.Error):
        raise Refused("not_json", "The body is not JSON.", status=400) from None
    salts = [value for name, value in top.pairs if name == "cache_salt"] if isinstance(top, _Pairs) else []
    if len(salts) != 1 or not isinstance(salts[0], str) or not salts[0]:
        raise Refused("no_salt", "A request carries exactly one cache_salt.")
    return salts[0]


class _Pairs:
    """A JSON object with every member it was written with: `dict` would hide that a name stands there twice."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        self.pairs = pairs


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body once more, then what the client does afterwards: its leaving must reach the engine."""
    sent = False

    async def again() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _refuse(send: Send, refusal: Refused) -> None:
    content = {"message": str(refusal), "type": "tidemark_guard", "code": refusal.code}
    body = json.dumps({"error": content}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
