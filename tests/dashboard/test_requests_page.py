"""Requests: found by id, filtered, as CSV; a member of a tenant sees that tenant's."""

from __future__ import annotations

import csv
import io
from datetime import datetime

import pytest
from django.test import Client

from controlplane.policies.services import set_watermark
from controlplane.telemetry.models import DecisionRecord
from controlplane.tenants.models import Membership, Tenant, User
from tests.dashboard import explained, story

pytestmark = pytest.mark.django_db
QUERIES_MAX = 12


@pytest.fixture
def told(db: None, now: datetime) -> None:
    story.make_fleet()
    explained.tell(now)


def _member(tenant: str, role: str = "viewer") -> Client:
    user = User.objects.create_user(f"{role}-of-{tenant}", password="x")
    Membership.objects.create(user=user, role=role, tenant=Tenant.objects.get(slug=tenant))
    client = Client()
    client.force_login(user)
    return client


def _listed(client: Client, query: str = "") -> set[str]:
    rows = csv.DictReader(io.StringIO(client.get(f"/requests.csv?{query}").content.decode()))
    text = client.get(f"/requests/?{query}").content.decode()
    found = {row["request"] for row in rows}
    assert found == {name for name in (explained.WHOLE, explained.RETRIED, explained.REFUSED, explained.FOREIGN)
                     if f"/requests/{name}/" in text}  # fmt: skip
    return found


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", {"req-whole", "req-retried", "req-refused", "req-foreign"}),
        ("tenant=globex", {"req-foreign"}),
        ("ns=acme/search", {"req-retried"}),
        ("worker=demo/w3", {"req-refused", "req-foreign"}),
        ("model=other", {"req-retried"}),
        ("outcome=upstream_error", {"req-refused"}),
        ("reason=home", {"req-refused", "req-foreign"}),
        ("ttft=250", {"req-whole", "req-retried"}),
        ("off=64", {"req-retried"}),
        ("off=16", {"req-whole", "req-retried"}),
        ("ttft=250&worker=demo/w2", {"req-whole"}),
        ("ttft=banana&off=-5", {"req-whole", "req-retried", "req-refused", "req-foreign"}),
        ("from=2020-01-01T00:00:00Z&to=2020-01-01T01:00:00Z", set()),
    ],
)
def test_it_is_filtered_by_what_the_address_says(viewer: Client, told: None, query: str, found: set[str]) -> None:
    assert _listed(viewer, query) == found


def test_a_request_is_found_by_its_id(viewer: Client, told: None) -> None:
    answer = viewer.get("/requests/?id=req-whole")
    assert answer.status_code == 302 and answer["Location"].startswith("/requests/req-whole/?")


def test_a_request_that_is_not_kept_is_said_to_be_so(viewer: Client, told: None) -> None:
    text = viewer.get("/requests/?id=req-unknown").content.decode()
    assert "req-unknown is not kept." in text and "1 %" in text and "/explain?request_id=req-unknown" in text


def test_the_card_explains_it(viewer: Client, told: None) -> None:
    set_watermark(actor="user:olga", scope="pool:demo", low=0.5, high=0.7)
    text = viewer.get("/requests/req-whole/").content.decode()
    for words in ("saves 683 ms of prefill", "Delivered as predicted", "match and choice", "first byte", "42 µs",
                  "least loaded", "+638 ms", "longest match", "round robin over 3", "left out: drain", "not scored",
                  "100 tokens, 20 ms each", 'href="/templates/acme/desk/2/', "published v12"):  # fmt: skip
        assert words in text, words
    assert "watermark of pool:demo" not in text, "that revision is younger than the request"
    assert "None" not in text and "NaN" not in text


def test_the_card_names_the_revision_that_held(viewer: Client, told: None, now: datetime) -> None:
    set_watermark(actor="user:olga", scope="pool:demo", low=0.5, high=0.7)
    DecisionRecord.objects.update(at=story.utc_now())
    text = viewer.get("/requests/req-whole/").content.decode()
    assert "/policies/revisions/watermark/pool:demo/1/" in text
    page = viewer.get("/policies/revisions/watermark/pool:demo/1/").content.decode()
    assert "70.0 %" in page and "50.0 %" in page


@pytest.mark.parametrize(
    ("pull", "said"),
    [
        ("ok", ("pulled from demo/w1", "w1 offered the prompt")),
        ("fell_back", ("computed after all", "was to hand over")),
    ],
)
def test_the_card_says_what_came_from_another_worker(
    viewer: Client, told: None, pull: str, said: tuple[str, str]
) -> None:
    record = DecisionRecord.objects.get(request_id="req-whole")
    assert "KV from a peer" not in viewer.get("/requests/req-whole/").content.decode()
    record.detail |= {"pull": pull, "pulled_from": "demo/w1", "pull_ms": 31.0}
    record.save()
    text = viewer.get("/requests/req-whole/").content.decode()
    assert all(words in text for words in ("KV from a peer", *said))


def test_a_member_of_a_tenant_sees_that_tenants(told: None) -> None:
    alice, charlie = _member("acme"), _member("globex")
    assert _listed(alice) == {"req-whole", "req-retried", "req-refused"}
    assert _listed(charlie) == {"req-foreign"}
    assert alice.get("/requests/?tenant=globex").status_code == 404
    assert alice.get("/requests.csv?tenant=globex").status_code == 404
    for path in ("/requests/req-foreign/", "/requests/req-none/"):
        answer = alice.get(path)
        assert answer.status_code == 404 and "globex" not in answer.content.decode()
    assert "req-foreign is not kept." in alice.get("/requests/?id=req-foreign").content.decode()
    text = alice.get("/requests/?ns=globex/agents").content.decode()
    assert "req-foreign" not in text


def test_a_members_card_has_no_addresses_and_no_load_of_others(told: None) -> None:
    alice = _member("acme")
    text = alice.get("/requests/req-whole/").content.decode()
    assert "demo/w2" in text and "6.14 k" in text
    assert "Requests there" not in text and "KV use" not in text and "/workers/" not in text and "29100" not in text
    assert "requests under way" not in alice.get("/requests/req-retried/").content.decode()


def test_text_that_is_markup_is_escaped(viewer: Client, told: None) -> None:
    evil = "<script>alert(1)</script>"
    for query in (f"id={evil}", f"outcome={evil}", f"ns={evil}", f"ttft={evil}"):
        assert evil not in viewer.get(f"/requests/?{query}").content.decode()


@pytest.mark.parametrize("path", ["/requests/", "/requests/?off=64&ttft=1&tenant=acme", "/requests/req-whole/"])
def test_a_page_asks_little(viewer: Client, told: None, path: str, django_assert_max_num_queries: object) -> None:
    with django_assert_max_num_queries(QUERIES_MAX):  # type: ignore[operator]
        answer = viewer.get(path)
    assert answer.status_code == 200 and "style=" not in answer.content.decode()
