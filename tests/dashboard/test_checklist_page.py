"""The Checklist page and its JSON, from stored facts."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.checklist.facts import read_facts
from controlplane.fleet.models import Worker, WorkerPool
from controlplane.isolation.models import CanaryResult
from controlplane.prompts.models import PromptGolden, PromptTemplate, PromptTemplateVersion
from controlplane.telemetry.models import PrefixBreakRollup
from controlplane.tenants.models import Tenant

pytestmark = pytest.mark.django_db


def test_facts_are_what_is_stored(fleet: None, now) -> None:
    template = PromptTemplate.objects.create(tenant=Tenant.objects.get(slug="acme"), slug="desk")
    version = PromptTemplateVersion.objects.create(
        template=template, version=1, status="published", accepted_lints=["hash_early"]
    )
    PromptTemplateVersion.objects.create(template=template, version=2)
    PromptGolden.objects.create(
        version=version, pool="demo", tokenizer_digest="d", tokens=9, digest="d", accepted_at=now, checked_at=now,
        fault="moved",
    )  # fmt: skip
    for kind, prompts in (("", 100), ("clock", 7)):
        PrefixBreakRollup.objects.create(
            start=now, namespace="acme/support", pool="demo", kind=kind, prompts=prompts, last_at=now
        )
    worker = Worker.objects.first()
    CanaryResult.objects.create(
        worker=worker, endpoint="chat", model="m", checked_at=now, verdict="green", reason="x", duration_ms=1
    )
    Worker.objects.filter(slug="w4").update(state="drain")
    facts = read_facts(now=now)
    assert [worker.worker_id for worker in facts.workers] == ["demo/w1", "demo/w2", "demo/w3"]
    assert facts.workers[0].kv_state == "live" and facts.workers[0].block_size == 16
    assert facts.pools[0].slug == "demo" and not facts.pools[0].has_connector
    assert facts.requests["requests"] > 100 and sum(facts.requests["ttft_hit"].values()) > 20
    assert facts.decisions and facts.decisions[0]["candidates"] and facts.hot
    assert (facts.prompts_looked_at, facts.prompts_cut) == (100, 7)
    [seen] = facts.templates
    assert (seen.name, seen.accepted_lints, seen.goldens, seen.faults) == ("acme/desk@1", ("hash_early",), 1, 1)
    assert len(facts.canaries) == 1


def test_the_page_shows_each_line_with_its_evidence_and_the_json_agrees(fleet: None, viewer: Client) -> None:
    html = viewer.get("/checklist/").content.decode()
    document = viewer.get("/api/v1/checklist").json()
    states = {line["key"]: line["state"] for line in document["lines"]}
    assert len(states) == 12 and document["green"] + document["red"] + document["unknown"] == 12
    assert states["hits_recorded"] == "green" and states["ttft_compared"] == "green"
    assert states["token_blocks"] == "red", "the pool names no tokenizer"
    assert states["prompt_order"] == "unknown" and states["separated"] == "unknown"
    for line in document["lines"]:
        assert line["title"] in html and line["path"].startswith("/")
    assert f"{document['green']} green" in html


def test_an_empty_installation_is_all_unknown(viewer: Client) -> None:
    WorkerPool.objects.create(slug="empty")
    document = viewer.get("/api/v1/checklist").json()
    assert (document["green"], document["red"], document["unknown"]) == (0, 0, 12)
    assert viewer.get("/checklist/").status_code == 200


def test_it_asks_few_queries(fleet: None, viewer: Client) -> None:
    with CaptureQueriesContext(connection) as asked:
        assert viewer.get("/checklist/").status_code == 200
    assert len(asked) <= 12
