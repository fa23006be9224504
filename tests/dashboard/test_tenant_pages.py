"""Tenants, namespaces and keys on the dashboard: what is listed, found and changed, and by whom."""

from __future__ import annotations

import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.approvals.models import ChangeRequest
from controlplane.audit.models import AuditEntry
from controlplane.namespaces.models import ApiKey, CacheNamespace
from controlplane.tenants.models import Membership, Tenant, User
from dashboard import fragments
from tests.dashboard import story
from tests.dashboard.people import html_of, member

QUERIES_MAX = 12
NAMESPACE = "/namespaces/acme/support/"
PAGES = (
    "/tenants/", "/tenants/acme/", NAMESPACE, "/status/acme/", "/first-run/", "/onboarding/",
    "/revoke/namespace/acme/support/", "/revoke/tenant/acme/", "/revoke/key/acmesupp/", "/revoke/model/demo:sim-llama/",
    "/tenants/acme/settings/", f"{NAMESPACE}settings/", f"{NAMESPACE}rotate/", f"{NAMESPACE}sharing/",
    f"{NAMESPACE}keys/add/", f"{NAMESPACE}keys/acmesupp/rotate/", f"{NAMESPACE}status/suspended/",
    "/tenants/acme/namespaces/add/", "/tenants/acme/status/suspended/", "/pools/add/",
)  # fmt: skip

pytestmark = pytest.mark.django_db


def test_each_page_asks_at_most_twelve_queries(admin: Client, short_fleet: None) -> None:
    too_many = {}
    for path in PAGES:
        fragments.forget()
        with CaptureQueriesContext(connection) as asked:
            assert admin.get(path).status_code == 200, path
        if len(asked) > QUERIES_MAX:
            too_many[path] = [query["sql"][:120] for query in asked]
    assert not too_many


def test_fifty_tenants_stand_on_a_page_whatever_their_number(viewer: Client) -> None:
    Tenant.objects.bulk_create(Tenant(slug=f"t{number:03}", name=f"Tenant {number}") for number in range(120))
    first = html_of(viewer, "/tenants/")
    assert "120 tenants" in first and "page 1 of 3, 120 in all" in first and "t049" in first and "t050" not in first
    assert "t119" in html_of(viewer, "/tenants/?page=3")
    assert first.count("/tenants/t") == 50


@pytest.mark.parametrize(
    ("query", "found", "absent"),
    [
        ("q=glob", ["globex"], ["acme", "initech"]),
        ("q=Initech", ["initech"], ["acme"]),
        ("q=acme/sup", ["acme"], ["globex"]),
        ("q=agents", ["globex"], ["acme"]),
        ("q=tm_initrepo_", ["initech"], ["acme", "globex"]),
        ("only=suspended", ["globex"], ["acme", "initech"]),
        ("q=nobody", ["No tenant is like that."], ["/tenants/acme/"]),
    ],
)
def test_they_are_found_by_name_namespace_key_and_status(
    viewer: Client, query: str, found: list[str], absent: list[str]
) -> None:
    story.make_fleet()
    Tenant.objects.filter(slug="globex").update(status="suspended")
    body = html_of(viewer, f"/tenants/?{query}").split('id="tenants"')[1].split("</section>")[0]
    assert all(words in body for words in found)
    assert not any(f"/tenants/{words}/" in body for words in absent)


def test_they_are_sorted_by_any_column_and_unknown_comes_last(viewer: Client, short_fleet: None) -> None:
    Tenant.objects.create(slug="aaa-idle", name="Idle")
    Tenant.objects.filter(slug="initech").update(prefill_tokens_per_s=500.0)

    def order(sort: str) -> list[str]:
        body = html_of(viewer, f"/tenants/?sort={sort}")
        return list(dict.fromkeys(re.findall(r'href="/tenants/([a-z-]+)/\?', body)))

    assert order("tenant") == ["aaa-idle", "acme", "globex", "initech"]
    assert order("-tenant") == ["initech", "globex", "acme", "aaa-idle"]
    assert order("-namespaces")[0] == "acme"
    assert order("-requests")[0] == "acme" and order("-requests")[-1] == "aaa-idle"
    assert order("hit")[-1] == "aaa-idle", "without traffic the share is unknown"
    assert order("-budget")[0] == "initech"
    assert 'aria-sort="descending"' in html_of(viewer, "/tenants/?sort=-requests")


def test_a_tenants_page_shows_what_belongs_to_it(admin: Client, short_fleet: None) -> None:
    admin.post("/tenants/acme/settings/", {"name": "Acme Ltd", "prefill_tokens_per_s": "20 000", "revision": "1"})
    body = html_of(admin, "/tenants/acme/")
    assert "Acme Ltd" in body and "20 k" in body
    assert "support" in body and "search" in body and "1.5 s" in body
    assert "tenant.update" in body and "ada" in body, "the change log names who did it"
    assert "globex" not in body


def test_a_stale_form_says_so_and_changes_nothing(admin: Client, short_fleet: None) -> None:
    answer = admin.post("/tenants/acme/settings/", {"name": "Late", "revision": "9"})
    assert answer.status_code == 412 and b"It has been changed since" in answer.content
    assert Tenant.objects.get(slug="acme").name == "Acme"


def test_what_is_no_number_is_an_error_of_its_field(admin: Client, short_fleet: None) -> None:
    sent = {"name": "Acme", "prefill_tokens_per_s": "lots", "revision": "1"}
    answer = admin.post("/tenants/acme/settings/", sent)
    assert answer.status_code == 422
    assert b'value="lots"' in answer.content and b"This is not a number." in answer.content


def test_members_of_one_tenant_see_that_tenant_alone(alice: Client, bob: Client) -> None:
    for client in (alice, bob):
        listed = html_of(client, "/tenants/")
        assert "acme" in listed and "globex" not in listed and "initech" not in listed
        for path in PAGES:
            foreign = path.replace("acmesupp", "globagen").replace("acme", "globex").replace("support", "agents")
            absent = path.replace("acmesupp", "nosuchkey").replace("acme", "nobody").replace("support", "nothing")
            if foreign == path:
                continue
            answers = [client.get(one) for one in (foreign, absent)]
            assert [one.status_code for one in answers] in ([404, 404], [403, 403]), foreign
            bodies = [one.content.decode().replace("globex", "nobody") for one in answers]
            assert len(bodies[0]) == len(bodies[1]), f"{foreign} tells that it exists"


def test_who_only_looks_is_offered_no_lever_and_may_use_none(bob: Client) -> None:
    for path in ("/tenants/acme/", NAMESPACE):
        body = html_of(bob, path)
        assert "Revoke" not in body.replace("Revocations", "") and "Settings</a>" not in body, path
    for path in (f"{NAMESPACE}settings/", f"{NAMESPACE}keys/add/", "/revoke/namespace/acme/support/",
                 "/tenants/acme/members/grant/", "/tenants/acme/settings/"):  # fmt: skip
        assert bob.post(path, {"typed": "acme/support", "name": "x"}).status_code == 403, path
    assert CacheNamespace.objects.get(tenant__slug="acme", slug="support").status == "active"


def test_a_tenants_administrator_raises_no_priority_and_no_budget(alice: Client) -> None:
    sent = {"name": "", "on_stale": "deny", "unknown_fields": "drop", "ttft_slo_ms": "900", "priority": "4",
            "revision": "1", "model_names": ["sim-llama"]}  # fmt: skip
    assert alice.post(f"{NAMESPACE}settings/", sent).status_code == 302
    row = CacheNamespace.objects.get(tenant__slug="acme", slug="support")
    assert (row.on_stale, row.ttft_slo_ms, row.model_names, row.priority) == ("deny", 900.0, ["sim-llama"], 0)
    assert "Priority" not in html_of(alice, f"{NAMESPACE}settings/")
    assert alice.get("/tenants/acme/settings/").status_code == 403


def test_a_namespace_is_added_private(alice: Client) -> None:
    sent = {"slug": "more", "on_stale": "serve", "unknown_fields": "drop", "ttft_slo_ms": ""}
    assert alice.post("/tenants/acme/namespaces/add/", sent)["location"].startswith("/namespaces/acme/more/")
    assert CacheNamespace.objects.get(tenant__slug="acme", slug="more").isolation == "private"
    again = alice.post("/tenants/acme/namespaces/add/", sent)
    assert again.status_code == 409 and b"already exists" in again.content


def test_a_key_is_shown_once_and_never_again(alice: Client) -> None:
    answer = alice.post(f"{NAMESPACE}keys/add/", {"name": "helpdesk", "expires": "30"})
    key = re.search(r"tm_([0-9a-z]{12})_[A-Za-z0-9_-]{43}", answer.content.decode())
    assert answer.status_code == 200 and key and "no-store" in answer["cache-control"]
    assert f"Bearer {key[0]}" in answer.content.decode(), "the command to try it"
    row = ApiKey.objects.get(key_id=key[1])
    assert row.name == "helpdesk" and row.expires_at is not None
    body = html_of(alice, NAMESPACE)
    assert f"tm_{key[1]}_…" in body and key[0] not in body
    assert key[0].split("_", 2)[2] not in str(list(AuditEntry.objects.values_list("after", flat=True)))


def test_a_key_that_explains_is_not_a_tenants_to_give(alice: Client, operator: Client) -> None:
    assert alice.post(f"{NAMESPACE}keys/add/", {"name": "x", "expires": "30", "explain": "on"}).status_code == 403
    assert operator.post(f"{NAMESPACE}keys/add/", {"name": "x", "expires": "30", "explain": "on"}).status_code == 200
    assert ApiKey.objects.get(name="x").scopes == ["explain", "inference"]


def test_rotating_a_key_leaves_both_for_the_overlap(alice: Client) -> None:
    answer = alice.post(f"{NAMESPACE}keys/acmesupp/rotate/", {"overlap": "3600", "reason": "yearly"})
    assert answer.status_code == 200 and b"shown this once" in answer.content
    old, new = ApiKey.objects.filter(namespace__slug="support", namespace__tenant__slug="acme").order_by("id")
    assert old.expires_at is not None and old.status == new.status == "active" and new.name == old.name


def test_rotating_the_salt_begins_a_generation(alice: Client) -> None:
    before = CacheNamespace.objects.get(tenant__slug="acme", slug="support")
    assert "compute their whole prompts" in html_of(alice, f"{NAMESPACE}rotate/")
    alice.post(f"{NAMESPACE}rotate/", {"reason": "suspicion"})
    after = CacheNamespace.objects.get(pk=before.pk)
    assert after.generation == before.generation + 1 and after.generation_nonce != before.generation_nonce


def test_suspending_and_resuming_say_what_they_cost(operator: Client, short_fleet: None) -> None:
    for path, row in (("/tenants/acme/", Tenant.objects.get(slug="acme")),
                      (NAMESPACE, CacheNamespace.objects.get(tenant__slug="acme", slug="support"))):  # fmt: skip
        assert "is refused as soon as each router has the policy" in html_of(operator, f"{path}status/suspended/")
        operator.post(f"{path}status/suspended/", {"reason": "unpaid"})
        row.refresh_from_db()
        assert row.status == "suspended" and "Resume" in html_of(operator, path)
        operator.post(f"{path}status/active/", {})
        row.refresh_from_db()
        assert row.status == "active"
    assert operator.post("/tenants/acme/status/revoked/").status_code == 404, "revoking asks for the name"


def test_sharing_is_proposed_and_waits_for_another_person(operator: Client, short_fleet: None) -> None:
    operator.post(f"{NAMESPACE}sharing/", {"isolation": "project", "project": "help", "reason": "same articles"})
    assert ChangeRequest.objects.get().subject == "acme/support"
    assert CacheNamespace.objects.get(tenant__slug="acme", slug="support").isolation == "private"
    assert "Waiting for another person" in html_of(operator, NAMESPACE)


def test_members_are_added_changed_and_removed_within_ones_own_rights(alice: Client) -> None:
    User.objects.create_user(username="carol", password=story.PASSWORD)
    alice.post("/tenants/acme/members/grant/", {"user": "carol", "role": "viewer"})
    assert "carol" in html_of(alice, "/tenants/acme/")
    alice.post("/tenants/acme/members/grant/", {"user": "carol", "role": "tenant_admin"})
    assert Membership.objects.get(user__username="carol").role == "tenant_admin"
    assert alice.post("/tenants/acme/members/grant/", {"user": "carol", "role": "security"}).status_code == 403
    alice.post("/tenants/acme/members/withdraw/", {"user": "carol"})
    assert not Membership.objects.filter(user__username="carol").exists()
    missing = alice.post("/tenants/acme/members/grant/", {"user": "nobody", "role": "viewer"}, follow=True)
    assert "There is no user" in missing.content.decode()


def test_nobody_takes_a_role_away_that_carries_more_than_theirs(alice: Client) -> None:
    member("sam", "security", "acme")
    assert alice.post("/tenants/acme/members/withdraw/", {"user": "sam"}).status_code == 403
    assert "holds more than you may give" in html_of(alice, "/tenants/acme/")
