"""/healthz says the process lives, /readyz what it can reach."""

from __future__ import annotations

import pytest
from django.db import DatabaseError


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_anybody_may_ask(charlie, path: str) -> None:
    assert charlie.get(path).status_code == 200


def test_without_valkey_it_is_degraded_but_serves(charlie) -> None:
    assert charlie.get("/readyz").json() == {"status": "degraded", "database": "ok", "valkey": "away"}


def test_with_both_it_is_ready(charlie, valkey_url: str) -> None:
    assert charlie.get("/readyz").json() == {"status": "ready", "database": "ok", "valkey": "ok"}


def test_without_its_database_it_is_not_ready_but_lives(charlie, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise DatabaseError("away")

    with monkeypatch.context() as patch:
        patch.setattr("controlplane.api.health.connection.cursor", refuse)
        answer = charlie.get("/readyz")
    assert (answer.status_code, answer["retry-after"], answer.json()["database"]) == (503, "2", "away")
    assert charlie.get("/healthz").content == b"ok"
