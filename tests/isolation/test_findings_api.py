"""Violations, findings and canaries over REST: filters, acknowledgement with a reason, export (S8, S7)."""

from __future__ import annotations

import csv
import io
import json

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from controlplane.audit.models import AuditEntry
from controlplane.fleet.findings import Observation, observe
from controlplane.fleet.models import Finding, Worker, WorkerPool
from controlplane.isolation.models import CanaryResult, IsolationViolation
from controlplane.isolation.services import record_violations
from controlplane.tenants.member_services import grant_role
from controlplane.tenants.models import User
from controlplane.tenants.roles import Role
from router.contract.telemetry import Shipment, Violation


def client_of(name: str, role: Role, tenant: str = "") -> APIClient:
    user = User.objects.create_user(name, password="x")
    grant_role(actor="user:root", username=name, role=role, tenant=tenant)
    client = APIClient()
    client.force_login(user)
    return client


@pytest.fixture
def sam(support) -> APIClient:
    """Security, in the whole fleet."""
    return client_of("sam", Role.SECURITY)


def violation(number: int, *, tenant: str = "acme", cached: int = 640, bound: int = 0, **fields: object) -> Violation:
    return Violation(
        at=timezone.now().timestamp(), request_id=f"r{number}", tenant=tenant, namespace=f"{tenant}/support",
        pool="llama", worker="llama/w1", model="m", prompt_tokens=1000, cached_tokens=cached, bound_tokens=bound,
        evidence=f"{number % 2:032x}", **fields,
    )  # fmt: skip


@pytest.fixture
def three(support) -> None:
    WorkerPool.objects.create(slug="llama", block_size=16)
    found = [violation(1), violation(2, cached=70, bound=60), violation(3, tenant="globex")]
    record_violations([Shipment("r", "b", 0, 0.0, violations=found)])


def ids(answer) -> list[str]:
    assert answer.status_code == 200, answer.content
    return [item["request_id"] for item in answer.json()["items"]]


def test_violations_are_listed_newest_first_with_their_evidence(sam: APIClient, three: None) -> None:
    items = sam.get("/api/v1/violations").json()["items"]
    assert [item["request_id"] for item in items] == ["r3", "r2", "r1"]
    assert items[0]["evidence"] == items[2]["evidence"] == f"{1:032x}"


def test_less_than_a_block_above_the_bound_is_a_warning_only(sam: APIClient, three: None) -> None:
    found = {item["request_id"]: item["severity"] for item in sam.get("/api/v1/violations").json()["items"]}
    assert found == {"r1": "critical", "r2": "warning", "r3": "critical"}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("tenant=acme", ["r2", "r1"]),
        ("namespace=globex/support", ["r3"]),
        ("severity=warning", ["r2"]),
        ("worker=llama/w2", []),
        ("acknowledged=true", []),
        ("acknowledged=false", ["r3", "r2", "r1"]),
        (f"evidence={1:032x}", ["r3", "r1"]),
        ("since=2099-01-01T00:00:00Z", []),
        ("until=2099-01-01T00:00:00Z&tenant=globex", ["r3"]),
    ],
)
def test_violations_are_filtered(sam: APIClient, three: None, query: str, expected: list[str]) -> None:
    assert ids(sam.get(f"/api/v1/violations?{query}")) == expected


def test_a_mistyped_filter_is_refused_also_by_the_export(sam: APIClient, three: None) -> None:
    for path in ("violations", "violations.csv", "findings.json"):
        assert sam.get(f"/api/v1/{path}?tenannt=acme").status_code == 422


def test_a_violation_is_acknowledged_once_and_with_a_reason(sam: APIClient, three: None) -> None:
    row = IsolationViolation.objects.get(request_id="r1")
    address = f"/api/v1/violations/{row.pk}"
    assert sam.post(f"{address}/acknowledge", {"reason": "  "}, format="json").status_code == 422
    assert sam.post(f"{address}/acknowledge", {}, format="json").status_code == 422
    answer = sam.post(f"{address}/acknowledge", {"reason": "A test of ours."}, format="json")
    assert (answer.status_code, answer.json()["acknowledged_by"]) == (200, "user:sam")
    assert sam.post(f"{address}/acknowledge", {"reason": "Again."}, format="json").status_code == 409
    assert sam.get(address).json()["acknowledgement"] == "A test of ours."
    assert ids(sam.get("/api/v1/violations?acknowledged=true")) == ["r1"]
    entry = AuditEntry.objects.get(action="violation.acknowledge")
    assert (entry.reason, entry.actor) == ("A test of ours.", "user:sam")


def test_a_finding_that_is_acknowledged_stays_open(sam: APIClient) -> None:
    observe([Observation("caching_off", "llama/w1", "Off.")], at=timezone.now())
    found = Finding.objects.get()
    answer = sam.post(f"/api/v1/findings/{found.pk}/acknowledge", {"reason": "Planned."}, format="json")
    assert (answer.status_code, answer.json()["acknowledgement"]) == (200, "Planned.")
    listed = sam.get("/api/v1/findings?open=true&acknowledged=true").json()["items"]
    assert [item["id"] for item in listed] == [found.pk]
    assert sam.get("/api/v1/findings?open=false").json()["items"] == []
    assert AuditEntry.objects.filter(action="finding.acknowledge").exists()


def test_both_lists_are_exported_as_csv_and_json(sam: APIClient, three: None) -> None:
    observe([Observation("caching_off", "=cmd|' /C calc'!A0", "Off.")], at=timezone.now())
    answer = sam.get("/api/v1/violations.csv?tenant=acme")
    rows = list(csv.DictReader(io.StringIO(b"".join(answer).decode())))
    assert [row["request_id"] for row in rows] == ["r2", "r1"] and rows[0]["bound_tokens"] == "60"
    assert answer["Content-Disposition"] == 'attachment; filename="violations.csv"'
    found = json.loads(b"".join(sam.get("/api/v1/violations.json")))
    assert [row["request_id"] for row in found] == ["r3", "r2", "r1"]
    findings = list(csv.DictReader(io.StringIO(b"".join(sam.get("/api/v1/findings.csv?kind=caching_off")).decode())))
    assert findings[0]["subject"].startswith("'=cmd"), "no spreadsheet runs it"
    assert json.loads(b"".join(sam.get("/api/v1/findings.json?kind=none"))) == []


def test_charlie_of_another_tenant_sees_his_own_only(three: None) -> None:
    charlie = client_of("charlie", Role.VIEWER, "acme")
    assert ids(charlie.get("/api/v1/violations")) == ["r2", "r1"]
    exported = json.loads(b"".join(charlie.get("/api/v1/violations.json")))
    assert {row["tenant"] for row in exported} == {"acme"}
    other = IsolationViolation.objects.get(request_id="r3")
    absent = charlie.get("/api/v1/violations/999999").json()
    foreign = charlie.get(f"/api/v1/violations/{other.pk}").json()
    assert {**absent, "request_id": ""} == {**foreign, "request_id": ""}
    assert charlie.get("/api/v1/findings").status_code == 403


@pytest.mark.parametrize("number", ["0", "9" * 18, "9" * 40, "-1", "x"])
def test_a_number_that_is_no_row_is_404(sam: APIClient, number: str) -> None:
    assert sam.get(f"/api/v1/violations/{number}").status_code == 404
    assert sam.get(f"/api/v1/findings/{number}").status_code == 404


def test_canaries_are_listed_and_filtered(sam: APIClient, pool: WorkerPool) -> None:
    worker = Worker.objects.get()
    for endpoint, verdict, newest in (("chat", "red", False), ("chat", "green", True), ("messages", "red", True)):
        CanaryResult.objects.create(
            worker=worker, endpoint=endpoint, model="m", checked_at=timezone.now(), verdict=verdict, reason="",
            duration_ms=1, newest=newest,
        )  # fmt: skip
    listed = sam.get("/api/v1/canaries?newest=true&worker=llama/w1").json()["items"]
    assert [(item["endpoint"], item["verdict"]) for item in listed] == [("messages", "red"), ("chat", "green")]
    assert len(sam.get("/api/v1/canaries?verdict=red").json()["items"]) == 2
    assert sam.get("/api/v1/canaries?worker=llama/w2").json()["items"] == []
    assert sam.get("/api/v1/canaries?pool=llama&endpoint=chat").status_code == 200


def test_a_worker_is_asked_by_hand(sam: APIClient, pool: WorkerPool) -> None:
    Worker.objects.update(url="http://127.0.0.1:9")
    answer = sam.post("/api/v1/workers/llama/w1/canaries")
    assert answer.status_code == 200 and {item["verdict"] for item in answer.json()["items"]} == {"inconclusive"}
    assert sam.post("/api/v1/workers/llama/w9/canaries").status_code == 404
