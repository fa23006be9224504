"""A tokenizer, chat template or tool schema that changes under a published template is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from controlplane.audit.models import AuditEntry
from controlplane.errors import Invalid
from controlplane.fleet.models import Finding
from controlplane.prompts.goldens import FINDING_KIND, accept_goldens, check_versions, published_versions, tools_digest
from controlplane.prompts.lints import report_on
from controlplane.prompts.models import PromptGolden
from controlplane.prompts.services import create_template, draft_version, publish_version
from controlplane.prompts.tasks import check_templates
from controlplane.prompts.tokens import counter_for
from tests.control.conftest import ACTOR

RULES = "import os\nfrom collections import defaultdict\n" * 12 + "End."
QUESTION = {"kind": "dynamic", "name": "question", "text": "{question}"}


def _publish(text: str = RULES, **more: object):
    row = draft_version(
        actor=ACTOR, template="acme/desk", segments=[{"kind": "static", "name": "rules", "text": text}, QUESTION]
    )
    return publish_version(actor=ACTOR, template="acme/desk", version=row.version, **more)


@pytest.fixture
def desk(support) -> None:
    create_template(actor=ACTOR, tenant="acme", slug="desk")


def _change_tokenizer(folder: Path) -> None:
    """The same vocabulary without its last merges: other tokens for the same text."""
    path = folder / "lab" / "tokenizer.json"
    data = json.loads(path.read_text())
    data["model"]["merges"] = data["model"]["merges"][:20]
    path.write_text(json.dumps(data))


def test_publication_keeps_the_tokens_by_pool(desk, exact_pool) -> None:
    _publish()
    golden = PromptGolden.objects.get()
    report = report_on([{"kind": "static", "name": "rules", "text": RULES}, QUESTION], counter_for(exact_pool))
    assert (golden.pool, golden.tokens, golden.fault) == ("llama", report.stable_tokens, "")


def test_a_changed_tokenizer_opens_a_finding_and_the_old_one_closes_it(desk, exact_pool, tokenizer_dir) -> None:
    _publish()
    before = (tokenizer_dir / "lab" / "tokenizer.json").read_text()
    _change_tokenizer(tokenizer_dir)
    assert check_templates() == 1
    finding = Finding.objects.get(kind=FINDING_KIND)
    assert finding.subject == "acme/desk@1" and "other tokens" in finding.message and finding.resolved_at is None
    (tokenizer_dir / "lab" / "tokenizer.json").write_text(before)
    check_versions(published_versions())
    finding.refresh_from_db()
    assert finding.resolved_at is not None


def test_a_changed_chat_template_opens_a_finding(desk, exact_pool, tokenizer_dir) -> None:
    _publish()
    path = tokenizer_dir / "lab" / "chat_template.jinja"
    path.write_text("{{ 'Today is Monday' }}" + (path.read_text() if path.exists() else ""))
    (golden,) = check_versions(published_versions())
    assert "chat template" in golden.fault
    assert Finding.objects.filter(kind=FINDING_KIND, resolved_at=None).count() == 1


def test_a_change_that_was_meant_is_accepted_and_audited(desk, exact_pool, tokenizer_dir) -> None:
    row = _publish()
    _change_tokenizer(tokenizer_dir)
    check_versions([row])
    (golden,) = accept_goldens(row, actor=ACTOR, reason="model release 2")
    assert golden.fault == "" and not Finding.objects.filter(kind=FINDING_KIND, resolved_at=None).exists()
    entry = AuditEntry.objects.order_by("-id").first()
    assert (entry.action, entry.reason) == ("template.accept_tokens", "model release 2")


def test_a_pool_without_a_tokenizer_is_left_out(desk, pool) -> None:
    row = _publish()
    assert check_versions([row]) == [] and not PromptGolden.objects.exists()


def _tools(*names: str) -> str:
    return json.dumps([{"name": name, "input_schema": {"type": "object"}} for name in names], sort_keys=True)


def test_other_tools_than_the_version_before_are_told(desk) -> None:
    _publish("Tools:\n" + _tools("fetch", "search"))
    _publish("Tools, again:\n" + _tools("fetch", "search"))
    assert not Finding.objects.filter(kind="tool_schema_changed").exists()
    _publish("Tools:\n" + _tools("fetch", "find"))
    assert Finding.objects.get(kind="tool_schema_changed").subject == "acme/desk@3"


def test_the_digest_of_tools_is_one_for_every_spelling() -> None:
    one, other = (
        tools_digest([{"kind": "static", "name": "t", "text": text}])
        for text in (_tools("a", "b"), _tools("b", "a").replace(", ", ","))
    )
    assert one == other != ""
    assert tools_digest([QUESTION]) == ""


def test_an_error_refuses_publication_until_it_is_accepted_with_a_reason(desk) -> None:
    faulty = "Today is Monday. " + RULES
    with pytest.raises(Invalid) as caught:
        _publish(faulty)
    assert caught.value.code == "lint" and caught.value.errors[0]["field"] == "segments.0.text"
    with pytest.raises(Invalid) as caught:
        _publish(faulty, accept=["clock_early"])
    assert caught.value.errors[0]["field"] == "reason"
    row = _publish(faulty, accept=["clock_early"], reason="it is a game")
    assert row.accepted_lints == ["clock_early"]


def test_a_boundary_that_joins_what_follows_is_told_in_the_pools_tokens(exact_pool) -> None:
    counter = counter_for(exact_pool)

    def codes(text: str) -> set[str]:
        return {lint.code for lint in report_on([{"kind": "static", "name": "r", "text": text}], counter).lints}

    assert "open_boundary" in codes(RULES + " impo{rest}")
    assert "open_boundary" not in codes(RULES)
