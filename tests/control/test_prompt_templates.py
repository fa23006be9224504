"""Prompt templates: what changes least comes first, and what is published never changes (S0.5)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.audit.models import AuditEntry
from controlplane.errors import Conflict, Invalid, NotFound, Stale
from controlplane.prompts.models import PromptTemplateVersion
from controlplane.prompts.segments import KINDS, SEGMENTS_MAX, digest_of, segment_errors
from controlplane.prompts.services import create_template, draft_version, edit_draft, publish_version, retire_version
from tests.control.conftest import ACTOR

GOOD = [
    {"kind": "static", "name": "rules", "text": "You are helpful. SECRET-MARKER"},
    {"kind": "semi_static", "name": "catalogue", "text": "…"},
    {"kind": "dynamic", "name": "question", "text": "{question}"},
]


@pytest.fixture
def template(support) -> str:
    create_template(actor=ACTOR, tenant="acme", slug="helpdesk")
    return "acme/helpdesk"


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=12))
def test_segments_are_fine_exactly_when_their_kinds_do_not_fall_back(kinds: list[str]) -> None:
    segments = [{"kind": kind, "name": f"s{index}", "text": ""} for index, kind in enumerate(kinds)]
    ranks = [KINDS.index(kind) for kind in kinds]
    errors = segment_errors(segments)
    assert bool(errors) == (ranks != sorted(ranks))
    for error in errors:
        index = int(error["field"].split(".")[1])
        assert ranks[index] < max(ranks[:index])


@pytest.mark.parametrize(
    ("segments", "field"),
    [
        (None, "segments"),
        ([], "segments"),
        ([dict(GOOD[0], name=str(n)) for n in range(SEGMENTS_MAX + 1)], "segments"),
        ([{"kind": "static", "name": "a"}], "segments.0"),
        ([{"kind": "fixed", "name": "a", "text": ""}], "segments.0.kind"),
        ([{"kind": "static", "name": "", "text": ""}], "segments.0.name"),
        ([{"kind": "static", "name": "a", "text": 7}], "segments.0.text"),
        ([GOOD[0], GOOD[0]], "segments.1.name"),
        ([GOOD[0], GOOD[2], GOOD[1]], "segments.2.kind"),
    ],
)
def test_the_error_is_at_the_offending_segment(segments: object, field: str) -> None:
    assert [error["field"] for error in segment_errors(segments)] == [field]


def test_the_order_error_says_what_to_do() -> None:
    (error,) = segment_errors([GOOD[2], GOOD[0]])
    assert error["message"].startswith("Segment 2 (rules) is static but comes after a dynamic one. Move it up")


def test_a_version_goes_from_draft_to_published_to_retired(template: str) -> None:
    assert draft_version(actor=ACTOR, template=template, segments=GOOD).version == 1
    edit_draft(actor=ACTOR, template=template, version=1, segments=GOOD[:2], if_revision=1)
    published = publish_version(actor=ACTOR, template=template, version=1, if_revision=2)
    assert published.digest == digest_of(GOOD[:2])
    for change in (
        lambda: edit_draft(actor=ACTOR, template=template, version=1, segments=GOOD),
        lambda: publish_version(actor=ACTOR, template=template, version=1),
    ):
        with pytest.raises(Conflict):
            change()
    assert draft_version(actor=ACTOR, template=template, segments=GOOD).version == 2
    assert retire_version(actor=ACTOR, template=template, version=1).status == "retired"


def test_a_published_version_cannot_be_saved_differently(template: str) -> None:
    draft_version(actor=ACTOR, template=template, segments=GOOD)
    publish_version(actor=ACTOR, template=template, version=1)
    row = PromptTemplateVersion.objects.get()
    row.segments = GOOD[:1]
    with pytest.raises(ValueError, match="published"):
        row.save()


def test_a_draft_edited_by_another_is_stale(template: str) -> None:
    draft_version(actor=ACTOR, template=template, segments=GOOD)
    edit_draft(actor=ACTOR, template=template, version=1, segments=GOOD[:1], if_revision=1)
    with pytest.raises(Stale):
        edit_draft(actor="user:bob", template=template, version=1, segments=GOOD, if_revision=1)


def test_nothing_wrong_is_stored(template: str) -> None:
    with pytest.raises(Invalid):
        draft_version(actor=ACTOR, template=template, segments=[GOOD[2], GOOD[0]])
    with pytest.raises(NotFound):
        draft_version(actor=ACTOR, template="acme/none", segments=GOOD)
    assert not PromptTemplateVersion.objects.exists()


def test_prompt_text_never_reaches_the_audit_log(template: str) -> None:
    draft_version(actor=ACTOR, template=template, segments=GOOD)
    publish_version(actor=ACTOR, template=template, version=1)
    assert "SECRET-MARKER" not in str(list(AuditEntry.objects.values()))
