"""The audit log as lines of JSON that an outsider can verify with a hash function and nothing else.

    {"entry":{…},"previous_hash":"…","hash":"…"}        one line an entry, in order
    {"head":{"last_id":…,"last_hash":"…","signature":"…"}}   the last line of a whole log

`entry` is the canonical text that is hashed, byte for byte: hash = SHA-256(previous_hash ‖ text of entry). The head's
signature needs the fleet key; who keeps an older head sees that a later log was not rewritten before it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

from controlplane.audit.chain import GENESIS_HASH, canonical
from controlplane.audit.models import AuditEntry, AuditHead
from controlplane.audit.verification import Verdict

_ENTRY, _PREVIOUS = b'{"entry":', b',"previous_hash":"'


def line_of(entry: AuditEntry) -> bytes:
    return b"%s%s%s%s" % (
        _ENTRY, canonical(entry), _PREVIOUS, f'{entry.previous_hash}","hash":"{entry.hash}"}}\n'.encode(),
    )  # fmt: skip


def head_line() -> bytes:
    """b"" of a log that has not begun."""
    head = AuditHead.objects.first()
    if head is None:
        return b""
    shown = {"last_id": head.last_id, "last_hash": head.last_hash, "signature": head.signature}
    return json.dumps({"head": shown}, separators=(",", ":")).encode() + b"\n"


def verify_lines(lines: Iterable[bytes]) -> Verdict:
    """Every link of an exported log, or of a part of one. It knows no key: a log rewritten as a whole looks sound."""
    expected_id: int | None = None
    previous = ""
    seen = 0
    head: dict[str, Any] | None = None
    for line in lines:
        if not line.strip():
            continue
        text, given = _parts(line)
        if text is None:
            head = given["head"]
            continue
        number = given["entry"].get("id")
        fault = _fault(text, given, number, expected_id, previous)
        if fault:
            return Verdict(seen, number if expected_id is None else expected_id, fault)
        expected_id, previous, seen = number + 1, given["hash"], seen + 1
    if head is not None and (head.get("last_id"), head.get("last_hash")) != ((expected_id or 1) - 1, previous):
        return Verdict(seen, expected_id or 1, "the log does not end where its head says: entries were cut off")
    return Verdict(seen)


def _fault(text: bytes, given: dict[str, Any], number: object, expected_id: int | None, previous: str) -> str:
    if not isinstance(number, int):
        return "a line is not an entry"
    if expected_id is None and number == 1 and given["previous_hash"] != GENESIS_HASH:
        return "entry 1 does not begin the chain"
    if expected_id is not None and number != expected_id:
        return f"entry {expected_id} is missing or out of order (the next one found is {number})"
    if expected_id is not None and given["previous_hash"] != previous:
        return f"entry {number} does not follow from the one before it"
    if hashlib.sha256(given["previous_hash"].encode() + text).hexdigest() != given["hash"]:
        return f"entry {number} was altered"
    return ""


def _parts(line: bytes) -> tuple[bytes | None, dict[str, Any]]:
    """(canonical text, the line read); the text is None for the head. What cannot be read is an altered entry."""
    try:
        given = json.loads(line)
    except ValueError:
        given = {}
    given = given if isinstance(given, dict) else {}
    if isinstance(given.get("head"), dict):
        return None, given
    begin, end = len(_ENTRY), line.rfind(_PREVIOUS)
    known = {"entry": {}, "previous_hash": "", "hash": ""} | given
    known["entry"] = known["entry"] if isinstance(known["entry"], dict) else {}
    return (line[begin:end] if line.startswith(_ENTRY) else b""), known


def lines_of(entries: Iterable[AuditEntry], *, with_head: bool) -> Iterator[bytes]:
    yield from (line_of(entry) for entry in entries)
    if with_head:
        yield head_line()
