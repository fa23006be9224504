"""The worker guard (S26): what passes it, what does not, and that both ends agree on a proof."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from router.contract.guard import PROOF_HEADER, guard_key, proof
from router.contract.ids import PoolId
from router.contract.secrets import FleetKey
from tests.isolation.guard_file import guard

FLEET_KEY = FleetKey(bytes(range(32)))
KEY = guard_key(FLEET_KEY, PoolId("llama"))
SALT = "a" * 43
NOW = 1_800_000_010.0
CHAT = "/v1/chat/completions"


class Worker:
    """A guarded application that notes what reached it."""

    def __init__(self, **options: Any) -> None:
        self.wall, self.monotonic = NOW, 500.0
        self.reached: list[tuple[str, bytes]] = []
        proofs = guard.Proofs([KEY], clock=lambda: self.wall, monotonic=lambda: self.monotonic, **options)
        self.app = guard.TidemarkGuard(self._application, proofs=proofs, body_bytes_max=10_000)

    async def _application(self, scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"] if scope["method"] == "POST" else b""
        self.reached.append((scope["path"], body))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"served"})

    def ask(self, path: str, body: bytes = b"", *, proofs: list[str] = [], method: str = "POST", cut: int = 7) -> Any:  # noqa: B006
        """(status, the guard's code). The body arrives in pieces."""
        headers = [(PROOF_HEADER.encode(), text.encode()) for text in proofs]
        pieces = [body[at : at + cut] for at in range(0, len(body), cut)] or [b""]
        messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
        messages[-1]["more_body"] = False
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return messages.pop(0) if messages else {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        asyncio.run(self.app({"type": "http", "method": method, "path": path, "headers": headers}, receive, send))
        status = sent[0]["status"]
        return status, json.loads(sent[1]["body"])["error"]["code"] if status != 200 else ""


def body_of(salt: object = SALT, **more: object) -> bytes:
    return json.dumps({"model": "m", "messages": [], "cache_salt": salt, **more}).encode()


def proof_at(now: float = NOW, *, salt: str = SALT, epoch: int = 5, key: bytes = KEY) -> str:
    return proof(key, salt=salt, epoch=epoch, now=now)


def test_the_proof_is_what_its_definition_says() -> None:
    """Written a second time, from the words of the contract alone."""

    def frame(*parts: bytes) -> bytes:
        return b"".join(struct.pack(">I", len(part)) + part for part in parts)

    key = hmac.new(bytes(range(32)), frame(b"guard-key/v1", b"llama"), hashlib.sha256).digest()
    mac = hmac.new(key, frame(b"guard/v1", b"5", b"1800000000", SALT.encode()), hashlib.sha256).digest()
    assert key == KEY
    assert proof_at() == "1.5.1800000000." + base64.urlsafe_b64encode(mac).decode().rstrip("=")


def test_a_request_of_the_fleet_passes_with_its_body_whole() -> None:
    worker, body = Worker(), body_of()
    assert worker.ask(CHAT, body, proofs=[proof_at()]) == (200, "")
    assert worker.reached == [(CHAT, body)]


@pytest.mark.parametrize(
    ("what", "body", "proofs", "code"),
    [
        ("direct, unsalted", json.dumps({"model": "m"}).encode(), [], "no_proof"),
        ("direct, salted", body_of(), [], "no_proof"),
        ("unsalted with a proof", json.dumps({"model": "m"}).encode(), [proof_at()], "no_salt"),
        ("null salt", body_of(None), [proof_at(salt="")], "no_salt"),
        ("empty salt", body_of(""), [proof_at(salt="")], "no_salt"),
        ("another salt than proven", body_of("b" * 43), [proof_at()], "foreign_proof"),
        ("another pool's key", body_of(), [proof_at(key=guard_key(FLEET_KEY, PoolId("other")))], "foreign_proof"),
        ("another fleet's key", body_of(), [proof_at(key=b"x" * 32)], "foreign_proof"),
        ("two salts", b'{"cache_salt":"x",' + body_of()[1:], [proof_at()], "no_salt"),
        ("an escaped second salt", b'{"cache\\u005fsalt":"x",' + body_of()[1:], [proof_at()], "no_salt"),
        ("a nested salt only", json.dumps({"extra": {"cache_salt": SALT}}).encode(), [proof_at()], "no_salt"),
        ("a list", b"[" + body_of() + b"]", [proof_at()], "no_salt"),
        ("no JSON", b"--boundary", [proof_at()], "not_json"),
        ("nested beyond measure", b"[" * 9000, [proof_at()], "not_json"),
        ("two proofs", body_of(), [proof_at(), proof_at()], "no_proof"),
        ("a proof of another form", body_of(), ["1.5.x." + "A" * 43], "no_proof"),
        ("too old", body_of(), [proof_at(NOW - 160)], "old_proof"),
        ("from the future", body_of(), [proof_at(NOW + 120)], "old_proof"),
    ],
)
def test_it_refuses(what: str, body: bytes, proofs: list[str], code: str) -> None:
    worker = Worker()
    status, given = worker.ask(CHAT, body, proofs=proofs)
    assert (given, worker.reached) == (code, []), what
    assert status == (400 if code == "not_json" else 403)


@pytest.mark.parametrize("path", sorted(guard.OPEN_PATHS))
def test_what_the_worker_says_of_itself_stays_open_to_read(path: str) -> None:
    assert Worker().ask(path, method="GET")[0] == 200
    assert Worker().ask(path, method="POST", body=body_of(), proofs=[proof_at()]) == (403, "not_offered")


@pytest.mark.parametrize(
    "path",
    ["/invocations", "/reset_prefix_cache", "/collective_rpc", "/v1/audio/transcriptions", "/v1/chat/completions/",
     "/V1/chat/completions", "/v1//completions", "/inference/v1/generate", "/docs", "/"],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
def test_every_other_path_is_closed_proof_or_not(path: str, method: str) -> None:
    assert Worker().ask(path, body_of(), proofs=[proof_at()], method=method) == (403, "not_offered")


def test_tokenising_needs_a_proof_without_salt() -> None:
    body = b'{"prompt": "x"}'
    assert Worker().ask("/tokenize", body, proofs=[proof_at(salt="")]) == (200, "")
    assert Worker().ask("/tokenize", body, proofs=[proof_at()]) == (403, "foreign_proof")
    assert Worker().ask("/tokenize", body) == (403, "no_proof")


def test_a_revoked_epoch_is_refused_after_its_grace() -> None:
    worker = Worker(grace_s=10.0)
    assert worker.ask(CHAT, body_of(), proofs=[proof_at(epoch=5)])[0] == 200
    assert worker.ask(CHAT, body_of(), proofs=[proof_at(epoch=6)])[0] == 200
    worker.monotonic += 9.9
    assert worker.ask(CHAT, body_of(), proofs=[proof_at(epoch=5)])[0] == 200, "routers learn of it one after another"
    worker.monotonic += 0.2
    assert worker.ask(CHAT, body_of(), proofs=[proof_at(epoch=5)]) == (403, "revoked_epoch")
    assert worker.ask(CHAT, body_of(), proofs=[proof_at(epoch=6)])[0] == 200


def test_revocations_in_a_row_do_not_extend_the_grace_of_the_first() -> None:
    worker = Worker(grace_s=10.0)
    for epoch in range(6, 15):
        worker.ask(CHAT, body_of(), proofs=[proof_at(epoch=epoch)])
        worker.monotonic += 2
    assert worker.ask(CHAT, body_of(), proofs=[proof_at(epoch=5)]) == (403, "revoked_epoch")
    assert worker.ask(CHAT, body_of(), proofs=[proof_at(epoch=13)])[0] == 200


def test_only_a_valid_proof_raises_the_epoch() -> None:
    worker = Worker(grace_s=0.0)
    worker.ask(CHAT, body_of(), proofs=[proof_at(epoch=99, key=b"x" * 32)])
    worker.ask(CHAT, body_of(), proofs=[proof_at(NOW - 3600, epoch=99)])
    assert worker.ask(CHAT, body_of(), proofs=[proof_at(epoch=5)])[0] == 200


def test_a_poll_with_a_proof_tells_of_the_epoch_and_any_poll_passes() -> None:
    worker = Worker(grace_s=10.0)
    for proven in ([proof_at(salt="", epoch=6)], ["nonsense"], [proof_at(salt="", epoch=99, key=b"x" * 32)], []):
        assert worker.ask("/metrics", method="GET", proofs=proven)[0] == 200
    assert worker.ask(CHAT, body_of(), proofs=[proof_at(epoch=5)])[0] == 200
    worker.monotonic += 10.1
    assert worker.ask(CHAT, body_of(), proofs=[proof_at(epoch=5)]) == (403, "revoked_epoch")
    assert worker.ask(CHAT, body_of(), proofs=[proof_at(epoch=6)])[0] == 200


def test_the_lowest_epoch_can_be_set() -> None:
    assert Worker(epoch_min=6).ask(CHAT, body_of(), proofs=[proof_at(epoch=5)]) == (403, "revoked_epoch")


def test_a_body_is_bounded() -> None:
    worker = Worker()
    assert worker.ask(CHAT, body_of(pad="x" * 10_000), proofs=[proof_at()], cut=999) == (413, "too_large")
    assert worker.reached == []


def test_a_websocket_is_closed_and_the_lifespan_passes() -> None:
    worker, sent, kinds = Worker(), [], []

    async def send(message: Any) -> None:
        sent.append(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        kinds.append(scope["type"])

    asyncio.run(worker.app({"type": "websocket", "path": "/v1/realtime", "headers": []}, None, send))
    assert [(each["type"], each["code"]) for each in sent] == [("websocket.close", 1008)]
    asyncio.run(guard.TidemarkGuard(app, proofs=guard.Proofs([KEY]))({"type": "lifespan"}, None, send))
    assert kinds == ["lifespan"]


@pytest.mark.parametrize("text", ["", "abc", "00" * 31, "zz" * 32, "00" * 32 + ",11"])
def test_a_worker_whose_guard_has_no_key_does_not_start(text: str) -> None:
    with pytest.raises(RuntimeError, match="64 hexadecimal"):
        guard.proofs_from({"TIDEMARK_GUARD_KEY": text})


def test_two_keys_serve_while_one_is_changed(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{'11' * 32}\n{KEY.hex()}\n")
    proofs = guard.proofs_from({"TIDEMARK_GUARD_KEY_FILE": str(file), "TIDEMARK_GUARD_AGE_S": "1e12"})
    proofs.check(proof_at(), SALT)
    proofs.check(proof_at(key=bytes.fromhex("11" * 32)), SALT)
