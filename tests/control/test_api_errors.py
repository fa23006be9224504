"""Every error is a problem document that says what to do and leaks nothing."""

from __future__ import annotations

import logging

import pytest
from django.db import IntegrityError, OperationalError, connection

from controlplane.tenants.models import Tenant

TENANTS = "/api/v1/tenants"


def _problem(answer) -> dict:
    assert answer["content-type"] == "application/problem+json"
    body = answer.json()
    assert {"type", "title", "status", "code", "detail", "errors", "request_id"} == set(body)
    assert body["status"] == answer.status_code
    return body


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 422),
        (b"{", 400),
        (b"null", 422),
        (b"[]", 422),
        (b'"x"', 422),
        (b'{"id": "a", "name": "A"} trailing', 400),
        (b'{"id": "a", "name": NaN}', 400),
        (b'{"id": "a", "name": 1e400}', 422),
        (b"\xff\xfe", 400),
        (b"[" * 100_000, 400),
        (b'{"id": ' + b"9" * 5000 + b', "name": "A"}', 400),
        (b'{"id": "a", "name": "\\ud800"}', 422),
        (b'{"id": "a\\u0000", "name": "A"}', 422),
        (b'{"id": "\\ud800", "name": "A"}', 422),
        (b'{"id": {"$ne": 1}, "name": ["A"]}', 422),
        (b'{"id": "a", "name": "A", "status": "active"}', 422),
    ],
)
def test_a_bad_body_gets_a_clear_error(alice, body: bytes, status: int) -> None:
    answer = alice.generic("POST", TENANTS, body, content_type="application/json")
    assert answer.status_code == status
    problem = _problem(answer)
    assert problem["detail"] and "Traceback" not in answer.content.decode()
    assert not Tenant.objects.exists()


def test_a_body_over_the_limit_is_413(alice) -> None:
    body = b'{"id": "a", "name": "' + b"x" * 1_100_000 + b'"}'
    assert _problem(alice.generic("POST", TENANTS, body, content_type="application/json"))["status"] == 413


def test_a_form_is_415(alice) -> None:
    assert _problem(alice.post(TENANTS, "a=b", content_type="text/plain"))["status"] == 415


def test_an_unknown_field_is_named(alice) -> None:
    answer = alice.post(TENANTS, {"id": "acme", "name": "A", "nmae": "B"}, format="json")
    assert _problem(answer)["errors"] == [{"field": "nmae", "message": "There is no such field."}]


@pytest.mark.parametrize(
    "path", ["/api/v1/nothing", "/api/v1/tenants/Acme", "/api/v1/tenants/a/b/c/d", "/api/", "/api/v1/tenants/../x"]
)
def test_an_unknown_address_is_a_problem_document(alice, path: str) -> None:
    assert _problem(alice.get(path))["status"] == 404
    assert _problem(alice.post(path, {}, format="json"))["status"] == 404


def test_a_wrong_method_is_405(alice) -> None:
    assert _problem(alice.delete(TENANTS))["status"] == 405


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 428),
        ({"if-match": '"2"'}, 412),
        ({"if-match": '"1", "2"'}, 422),
        ({"if-match": "W/1"}, 422),
        ({"if-match": '"99999999999999999999"'}, 422),
        ({"if-match": '"1"'}, 200),
    ],
)
def test_a_change_names_the_revision_it_saw(alice, support, headers: dict, status: int) -> None:
    answer = alice.patch(f"{TENANTS}/acme", {"name": "B"}, format="json", headers=headers)
    assert answer.status_code == status
    if status == 412:
        assert "revision 1 is current, yours is 2" in _problem(answer)["detail"]


def test_two_editors_of_one_revision_cannot_both_win(alice, support) -> None:
    answers = [
        alice.patch(f"{TENANTS}/acme", {"name": name}, format="json", headers={"if-match": '"1"'})
        for name in ("First", "Second")
    ]
    assert [answer.status_code for answer in answers] == [200, 412]
    assert Tenant.objects.get().name == "First"


def test_a_database_that_does_not_answer_is_503_with_retry_after(alice, monkeypatch) -> None:
    def locked(**_: object) -> None:
        raise OperationalError("database is locked: /secret/path")

    monkeypatch.setattr("controlplane.tenants.services.create_tenant", locked)
    answer = alice.post(TENANTS, {"id": "acme", "name": "A"}, format="json")
    assert (answer.status_code, answer["retry-after"]) == (503, "2")
    assert "secret" not in answer.content.decode()
    _problem(answer)


@pytest.mark.parametrize("path", [TENANTS, "/api/v1/audit", "/api/v1/routers", "/api/v1/snapshots/current"])
def test_with_the_database_away_every_read_is_503(alice, path: str) -> None:
    def away(execute, sql, params, many, context):
        raise OperationalError("could not connect to server: /secret/path")

    with connection.execute_wrapper(away):
        answer = alice.get(path)
    assert (answer.status_code, answer["retry-after"]) == (503, "2")
    assert "secret" not in answer.content.decode()


def test_a_race_that_the_database_decides_is_409(alice, monkeypatch) -> None:
    def lost(**_: object) -> None:
        raise IntegrityError("UNIQUE constraint failed: tenants_tenant.slug")

    monkeypatch.setattr("controlplane.tenants.services.create_tenant", lost)
    answer = alice.post(TENANTS, {"id": "acme", "name": "A"}, format="json")
    assert answer.status_code == 409 and "UNIQUE" not in answer.content.decode()


def test_an_unforeseen_error_is_logged_by_request_id_and_says_nothing(alice, monkeypatch, caplog) -> None:
    def broken(**_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("controlplane.tenants.services.create_tenant", broken)
    with caplog.at_level(logging.ERROR):
        answer = alice.post(TENANTS, {"id": "acme", "name": "A"}, format="json")
    problem = _problem(answer)
    assert answer.status_code == 500 and "secret" not in answer.content.decode()
    assert problem["request_id"] == answer["x-request-id"]
    assert problem["request_id"] in caplog.text


def test_the_request_id_is_ours_and_not_the_clients(alice) -> None:
    answer = alice.get(TENANTS, headers={"x-request-id": "x" * 1_000_000})
    assert len(answer["x-request-id"]) == 32 and "x" not in answer["x-request-id"]


def test_markup_in_a_name_comes_back_as_it_is_and_as_json(alice) -> None:
    name = "<script>alert(1)</script> =1+1 \u202egnp"
    answer = alice.post(TENANTS, {"id": "acme", "name": name}, format="json")
    assert answer["content-type"] == "application/json"
    assert answer.json()["name"] == name
