"""The exported audit log proves itself to who has nothing but the file: each link, each gap, each altered byte."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction
from rest_framework.test import APIClient

from controlplane.audit.exported import verify_lines
from controlplane.audit.models import AuditHead
from controlplane.audit.services import record

ENTRIES = 6


@pytest.fixture
def lines(bob: APIClient) -> list[bytes]:
    with transaction.atomic():
        for number in range(1, ENTRIES + 1):
            record(
                actor="user:älice", action="pool.update", object_type="pool", object_id="llama",
                before={"n": number, "x": 1.0}, after={"n": number + 1, "text": '","previous_hash":"'},
                affects_routing=False, reason="=cmd()", request_id="r" * 32,
            )  # fmt: skip
    return _export(bob, "jsonl").splitlines(keepends=True)


def _export(client: APIClient, form: str, query: str = "") -> bytes:
    answer = client.get(f"/api/v1/audit.{form}{query}")
    assert answer.status_code == 200
    return b"".join(answer.streaming_content)


def test_an_outsider_needs_a_hash_function_alone(lines: list[bytes]) -> None:
    previous = "0" * 64
    for line in lines[:-1]:
        told = json.loads(line)
        text = line[len('{"entry":') : line.rindex(b',"previous_hash"')]
        assert json.loads(text) == told["entry"]
        assert told["previous_hash"] == previous
        assert hashlib.sha256(previous.encode() + text).hexdigest() == told["hash"]
        previous = told["hash"]
    head = json.loads(lines[-1])["head"]
    assert (head["last_id"], head["last_hash"]) == (ENTRIES, previous)
    assert head["signature"] == AuditHead.objects.get().signature


def test_a_whole_export_and_a_part_of_one_are_sound(lines: list[bytes], bob: APIClient) -> None:
    assert verify_lines(lines).bad_id is None and verify_lines(lines).entries == ENTRIES
    part = _export(bob, "jsonl", "?from_id=3&to_id=5").splitlines(keepends=True)
    verdict = verify_lines(part)
    assert (verdict.bad_id, verdict.entries) == (None, 3)


TAMPERED = {
    "flip": (lambda lines: [*lines[:2], lines[2].replace(b"llama", b"lama2"), *lines[3:]], 3),
    "delete": (lambda lines: [*lines[:2], *lines[3:]], 3),
    "delete_first": (lambda lines: [b'{"entry":{"id":1},"previous_hash":"1","hash":"2"}\n', *lines[1:]], 1),
    "reorder": (lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]], 3),
    "truncate": (lambda lines: [*lines[:4], lines[-1]], 5),
    "truncate_all": (lambda lines: [lines[-1]], 1),
    "garbage": (lambda lines: [*lines[:3], b"nonsense\n", *lines[4:]], 4),
    "repeat": (lambda lines: [*lines[:3], *lines[2:]], 4),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_it_names_the_first_bad_entry(lines: list[bytes], name: str, tmp_path: Path) -> None:
    tamper, bad_id = TAMPERED[name]
    file = tmp_path / "audit.jsonl"
    file.write_bytes(b"".join(tamper(lines)))
    with pytest.raises(CommandError, match=f"audit entry {bad_id}:") as found:
        call_command("tidemark", "verify-audit", str(file))
    assert found.value.returncode == 1


def test_a_sound_file_is_said_to_be_whole(lines: list[bytes], tmp_path: Path, capsys) -> None:
    file = tmp_path / "audit.jsonl"
    file.write_bytes(b"".join(lines))
    call_command("tidemark", "verify-audit", str(file))
    assert f"{ENTRIES} entries" in capsys.readouterr().out


def test_the_csv_has_the_hashed_text_and_runs_nothing(lines: list[bytes], bob: APIClient) -> None:
    rows = list(csv.DictReader(io.StringIO(_export(bob, "csv").decode())))
    assert len(rows) == ENTRIES and rows[0]["reason"] == "'=cmd()" and rows[0]["request_id"] == "r" * 32
    for row in rows:
        assert hashlib.sha256((row["previous_hash"] + row["canonical"]).encode()).hexdigest() == row["hash"]


def test_a_filter_that_would_break_the_chain_is_refused(lines: list[bytes], bob: APIClient) -> None:
    assert bob.get("/api/v1/audit.jsonl?actor=user:x").status_code == 422


def test_before_after_reason_and_request_are_shown(alice: APIClient, support) -> None:
    answer = alice.patch("/api/v1/namespaces/acme/support", {"priority": 2}, format="json", headers={"if-match": "*"})
    newest = alice.get("/api/v1/audit").json()["items"][0]
    assert (newest["before"]["priority"], newest["after"]["priority"]) == (0, 2)
    assert newest["request_id"] == answer["x-request-id"] and newest["actor"] == "user:alice"
