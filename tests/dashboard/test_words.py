"""Names of code become words with units; pages keep their filter from page to page."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.policies.effective import SETTINGS_ONLY
from controlplane.policies.routing_values import FIELDS
from controlplane.telemetry.models import DecisionRecord
from dashboard import words


@pytest.mark.parametrize(
    ("value", "name", "expected"),
    [
        (0.5, "low", "50.0 %"),
        (5.0, "dwell_s", "5 s"),
        (1500.0, "ttft_slo_ms", "1.5 s"),
        (16, "block_size", "16 tokens"),
        (0, "priority", "0"),
        (False, "shed_over_slo", "no"),
        (None, "tokenizer", "–"),
        ("", "tokenizer", "–"),
        ("round_robin", "routing", "round robin"),
        (["a", "b"], "models", "a, b"),
    ],
)
def test_a_value_has_its_unit(value: object, name: str, expected: str) -> None:
    assert words.valued(value, name) == expected


def test_every_setting_has_words_of_its_own() -> None:
    names = {name for fields in FIELDS.values() for name in fields} | {n for ns in SETTINGS_ONLY.values() for n in ns}
    assert not names - words.LABELS.keys()


def test_people_are_named_without_their_kind() -> None:
    assert words.person("user:ada") == "ada"
    assert words.person("system:migration") == "Tidemark (migration)"
    assert words.person("token:ci") == "token ci" and words.person("ada") == "ada"


@pytest.mark.django_db
def test_a_filter_is_said_and_kept_on_the_next_page(viewer: Client) -> None:
    at = timezone.now() - timedelta(minutes=1)
    DecisionRecord.objects.bulk_create(
        DecisionRecord(at=at, request_id=f"r{number}", tenant="acme", namespace="acme/support", pool="demo",
                       worker="demo/w1", reason="least_outstanding", outcome="error", detail={})
        for number in range(60)
    )  # fmt: skip
    page = viewer.get("/requests/?outcome=error").content.decode().partition('id="decisions"')[2]
    assert "&amp;outcome=error&amp;page=2" in page and "Show all" in page and "least loaded" in page
    assert "Show all" not in viewer.get("/requests/").content.decode().partition('id="decisions"')[2]
