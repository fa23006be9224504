"""The Isolation page: canary matrix, open findings, acknowledgement by those who may."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.db.models import F, Value
from django.db.models.functions import Concat
from django.test import Client

from controlplane.approvals.models import ChangeRequest
from controlplane.fleet.models import Finding, Worker
from controlplane.isolation.models import CanaryResult, TtftAudit
from controlplane.namespaces.models import CacheNamespace
from controlplane.namespaces.sharing_services import propose_sharing


@pytest.fixture
def asked(fleet: None, now: datetime) -> Worker:
    """One worker green on chat, red on messages, and asked about completions long ago."""
    worker = Worker.objects.select_related("pool").first()
    assert worker is not None
    for endpoint, verdict, age in (("chat", "green", 0), ("messages", "red", 0), ("completions", "green", 3)):
        CanaryResult.objects.create(
            worker=worker, endpoint=endpoint, model="m", checked_at=now - timedelta(hours=age), verdict=verdict,
            reason=f"said of {endpoint}", duration_ms=1,
        )  # fmt: skip
    return worker


@pytest.fixture
def finding(fleet: None, now: datetime) -> Finding:
    return Finding.objects.create(
        kind="canary_leaks", subject="demo/w1", message="chat: leaks", severity="critical", first_seen=now,
        last_seen=now,
    )  # fmt: skip


def test_the_matrix_says_in_words_what_each_endpoint_said(operator: Client, asked: Worker) -> None:
    page = operator.get("/isolation/").content.decode()
    row = page.partition(f"{asked.worker_id}</a></th>")[2].partition("</tr>")[0]
    assert "isolated" in row and "leaks" in row and "not asked yet" in row
    assert row.count(", old<") == 1 and "said of messages" in row


def test_an_open_finding_is_acknowledged_with_a_reason_and_stays(operator: Client, finding: Finding) -> None:
    address = f"/isolation/findings/{finding.pk}/acknowledge/"
    assert "canary_leaks" in operator.get("/isolation/").content.decode()
    operator.post(address, {"reason": " "})
    finding.refresh_from_db()
    assert finding.acknowledged_at is None
    operator.post(address, {"reason": "The proxy is taken out tonight."})
    finding.refresh_from_db()
    assert (finding.acknowledged_by, finding.resolved_at) == ("user:olga", None)
    assert "The proxy is taken out tonight." in operator.get("/isolation/").content.decode()


def test_a_viewer_sees_findings_and_has_no_button(viewer: Client, finding: Finding) -> None:
    page = viewer.get("/isolation/").content.decode()
    assert "canary_leaks" in page and f"/isolation/findings/{finding.pk}/" not in page
    assert viewer.post(f"/isolation/findings/{finding.pk}/acknowledge/", {"reason": "x"}).status_code == 403


@pytest.fixture
def proposed(fleet: None) -> ChangeRequest:
    namespace = CacheNamespace.objects.select_related("tenant").first()
    assert namespace is not None
    return propose_sharing(
        actor="user:olga", namespace=namespace.namespace_id, isolation="project", project="help", reason="one corpus"
    )


def test_a_second_person_approves_what_was_proposed(operator: Client, admin: Client, proposed: ChangeRequest) -> None:
    address = f"/isolation/changes/{proposed.pk}/"
    assert "one corpus" in admin.get("/isolation/").content.decode()
    assert operator.post(address, {"verdict": "approve"}).status_code == 403, "an operator proposes only"
    admin.post(address, {"verdict": "approve", "decision": "agreed"})
    proposed.refresh_from_db()
    assert (proposed.state, proposed.decided_by, proposed.decision) == ("applied", "user:ada", "agreed")
    page = admin.get("/isolation/").content.decode()
    assert "Shared in a project of the tenant" in page and "Waiting for another person" not in page


def test_who_proposed_may_withdraw_and_not_approve(admin: Client, proposed: ChangeRequest) -> None:
    ChangeRequest.objects.update(proposed_by="user:ada")
    page = admin.get("/isolation/").content.decode()
    assert "Withdraw" in page and "Approve" not in page
    admin.post(f"/isolation/changes/{proposed.pk}/", {"verdict": "approve"})
    proposed.refresh_from_db()
    assert proposed.state == "pending"
    admin.post(f"/isolation/changes/{proposed.pk}/", {"verdict": "reject"})
    proposed.refresh_from_db()
    assert proposed.state == "withdrawn"


def test_a_worker_is_checked_from_the_page(operator: Client, viewer: Client, fleet: None) -> None:
    Worker.objects.update(url=Concat(Value("http://127.0.0.1:9/"), F("slug")))
    worker = Worker.objects.select_related("pool").first()
    assert worker is not None
    form = {"worker": worker.worker_id, "check": "ttft"}
    assert viewer.post("/isolation/check/", form).status_code == 403
    operator.post("/isolation/check/", form)
    assert TtftAudit.objects.get().requested_by == "user:olga"
    assert "under way" in operator.get("/isolation/").content.decode()
    operator.post("/isolation/check/", {**form, "check": "canary"})
    assert set(CanaryResult.objects.values_list("verdict", flat=True)) == {"inconclusive"}
    operator.post("/isolation/check/", {"worker": "none/w1", "check": "canary"})
