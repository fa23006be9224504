"""Template pages: versions, lints, comparison; a role in one tenant sees that tenant's, and nothing of others."""

from __future__ import annotations

import re
from datetime import datetime

import pytest
from django.test import Client

from controlplane.prompts.services import create_template, draft_version, publish_version
from controlplane.telemetry.ingest import apply_entries
from controlplane.tenants.models import Membership, Tenant, User
from router.contract.telemetry import RequestRow, Shipment, encode_shipment

pytestmark = pytest.mark.django_db
ACTOR = "user:olga"
RULES = "You are the assistant of a hardware shop. Be exact, be brief, and cite the article that you answer from. "
QUESTION = {"kind": "dynamic", "name": "question", "text": "{question}"}
PATH = "/templates/acme/desk/2/"


def _draft(text: str) -> None:
    segments = [{"kind": "static", "name": "rules", "text": text}, QUESTION]
    draft_version(actor=ACTOR, template="acme/desk", segments=segments)


@pytest.fixture
def desk(fleet: None) -> None:
    create_template(actor=ACTOR, tenant="acme", slug="desk")
    _draft(RULES * 3 + "End.")
    publish_version(actor=ACTOR, template="acme/desk", version=1)
    _draft(RULES + "Today is Monday. SECRET. " + RULES + "End.")


def _member(tenant: str) -> Client:
    user = User.objects.create_user(f"of-{tenant}", password="x")
    Membership.objects.create(user=user, role="tenant_admin", tenant=Tenant.objects.get(slug=tenant))
    client = Client()
    client.force_login(user)
    return client


def test_versions_lints_and_the_comparison_are_shown(operator: Client, desk: None) -> None:
    assert "acme/desk" in operator.get("/templates/").content.decode()
    text = operator.get(PATH).content.decode()
    assert "clock_early" in text and f"character {len(RULES)}" in text
    assert "They part in segment <strong>rules</strong>" in text and "cached tokens" in text
    assert operator.get(f"{PATH}?pool=demo").status_code == 200
    assert operator.get(f"{PATH}?pool=none").status_code == 404
    assert "None" not in text and "NaN" not in text


def test_an_error_must_be_accepted_with_a_reason_to_publish(operator: Client, desk: None) -> None:
    def publish(**fields: object) -> str:
        return operator.post(f"{PATH}publish/", fields, follow=True).content.decode()

    assert "clock_early" in publish(revision="1")
    assert "Say why" in publish(revision="1", accept=["clock_early"])
    assert "It has been changed since" in publish(revision="7", accept=["clock_early"], reason="a game")
    assert "acme/desk@2 is published" in publish(revision="1", accept=["clock_early"], reason="a game")
    assert "acme/desk@2 is retired" in operator.post(f"{PATH}retire/", {}, follow=True).content.decode()


def test_the_list_is_narrowed_and_comes_in_pages(operator: Client, desk: None) -> None:
    for number in range(60):
        create_template(actor=ACTOR, tenant="globex", slug=f"bulk{number:02}")

    def listed(query: str) -> set[str]:
        text = operator.get(f"/templates/?{query}").content.decode()
        return set(re.findall(r"<td>(\w+/\w+)</td>", text))

    assert listed("q=acme/de") == listed("only=published") == listed("only=draft") == {"acme/desk"}
    assert listed("q=bulk5") == {f"globex/bulk5{digit}" for digit in range(10)}
    assert len(listed("")) == 50 and len(listed("page=2")) == 11
    assert "acme/desk" not in listed("only=none") and listed("tenant=acme") == {"acme/desk"}
    assert "No template is like that" in operator.get("/templates/?q=nosuch").content.decode()


def test_two_versions_are_compared_by_blocks_and_cached_tokens(operator: Client, desk: None) -> None:
    _draft(RULES * 3 + "End.")
    against_2 = operator.get("/templates/acme/desk/3/").content.decode()
    assert "Against version 2" in against_2 and "First divergent block" in against_2
    against_1 = operator.get("/templates/acme/desk/3/?against=1").content.decode()
    assert "Against version 1" in against_1 and "The static parts are the same" in against_1
    assert "Nothing that version 1 has cached is lost" in against_1


def test_the_preview_is_assembled_with_its_placeholders(operator: Client, desk: None) -> None:
    text = operator.get(PATH).content.decode().partition('id="preview"')[2]
    assert text.index("hardware shop") < text.index("{question}")
    assert "not named by any request in 24 h" in text


def test_what_requests_still_name_is_retired_by_typing_its_name(operator: Client, desk: None, now: datetime) -> None:
    rows = [RequestRow(tenant="acme", namespace="acme/support", pool="demo", worker="demo/w1", model="m",
                       template="desk@1", requests=7, hit_tokens=50, hit_prompt_tokens=100)]  # fmt: skip
    shipment = Shipment(source="router-3", boot="b", seq=1, at=now.timestamp() - 60, requests=rows)
    assert not apply_entries([encode_shipment(shipment)], now=now).refused
    path = "/templates/acme/desk/1/"
    shown = operator.get(path).content.decode()
    assert "In the last 24 h 7 requests named it" in shown and "50.0 %" in shown and "type <code>acme/desk@1" in shown
    assert "type acme/desk@1 to retire it" in operator.post(f"{path}retire/", {}, follow=True).content.decode()
    answer = operator.post(f"{path}retire/", {"typed": "acme/desk@1"}, follow=True)
    assert "acme/desk@1 is retired" in answer.content.decode()


@pytest.mark.parametrize("path", ["/templates/", PATH, "/templates/acme/desk/1/"])
def test_a_page_asks_little(operator: Client, desk: None, path: str, django_assert_max_num_queries: object) -> None:
    with django_assert_max_num_queries(12):  # type: ignore[operator]
        text = operator.get(path).content.decode()
    assert "style=" not in text and "None" not in text


def test_a_role_in_a_tenant_sees_that_tenants(desk: None) -> None:
    own, other = _member("acme"), _member("globex")
    assert "acme/desk" in own.get("/templates/").content.decode()
    assert "acme/desk" not in other.get("/templates/").content.decode()
    assert own.get(PATH).status_code == 200
    assert other.get(PATH).status_code == other.get("/templates/acme/none/1/").status_code == 404
    assert other.post(f"{PATH}publish/", {}).status_code == 404


def test_a_viewer_publishes_nothing(viewer: Client, desk: None) -> None:
    assert "Publish version" not in viewer.get(PATH).content.decode()
    assert viewer.post(f"{PATH}publish/", {}).status_code == 403


def test_what_holds_is_shown_with_its_source(operator: Client, fleet: None) -> None:
    assert "Choose a pool." in operator.get("/policies/effective/").content.decode()
    text = operator.get("/policies/effective/?pool=demo&ns=acme/support").content.decode()
    assert "settings of pool demo" in text and "settings of namespace acme/support" in text and "global" in text
    assert "There is no pool" in operator.get("/policies/effective/?pool=none").content.decode()
