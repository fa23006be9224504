"""A whole key pasted where a name belongs leads to what its id leads to, and its secret stays out of addresses."""

from __future__ import annotations

import pytest
from django.http import HttpResponse
from django.test import Client, RequestFactory

from controlplane.namespaces.models import ApiKey
from dashboard.secrets import AddressesWithoutSecrets, without_secrets
from tests.dashboard.people import html_of

SECRET = "Zq7_-" * 8 + "abc"
KEY_ID = "abcdef012345"
KEY = f"tm_{KEY_ID}_{SECRET}"


ADDRESSES = (
    f"/tenants/?q={KEY}",
    f"/search/?text={KEY}&list=1",
    f"/search/names/tenant/?text=%20{KEY}",
    f"/requests/?id={KEY.replace('_', '%5F')}",
    f"/requests/{KEY}/",
    f"/?tenant={KEY}&from=-1h",
    f"/audit/?actor=x&object={KEY}",
    f"/api/v1/tenants?q={KEY}",
    f"/nosuch/?next=/tenants/%3Fq%3D{KEY}",
)


def test_an_address_that_holds_a_key_leads_to_one_without_its_secret(operator: Client) -> None:
    for address in ADDRESSES:
        answer = operator.get(address)
        assert answer.status_code == 302, address
        assert SECRET not in answer["Location"] and f"tm_{KEY_ID}" in answer["Location"], address
        assert SECRET not in operator.get(answer["Location"]).content.decode(), address


def test_a_token_and_a_key_that_lost_its_end_are_cut_too() -> None:
    assert without_secrets(f"tmp_{KEY_ID}_{SECRET}") == f"tmp_{KEY_ID}"
    assert without_secrets(f"see {KEY[:30]}!") == f"see tm_{KEY_ID}!"
    assert without_secrets(f"tm_{KEY_ID}_… of acme") == f"tm_{KEY_ID}_… of acme"


def test_the_tenant_and_the_namespace_are_found_by_the_key(operator: Client, short_fleet: None) -> None:
    ApiKey.objects.filter(namespace__slug="support").update(key_id=KEY_ID)
    answer = operator.get(f"/tenants/?q={KEY}", follow=True).content.decode()
    assert "/tenants/acme/?" in answer and "/tenants/globex/?" not in answer
    assert "/namespaces/acme/support/?" in html_of(operator, f"/search/?text=tm_{KEY_ID}&list=1")


def test_a_foreign_key_is_found_by_nobody(alice: Client) -> None:
    ApiKey.objects.filter(namespace__slug="agents").update(key_id=KEY_ID)
    assert "Nothing found" in html_of(alice, f"/search/?text=tm_{KEY_ID}&list=1")
    assert "globex" not in alice.get(f"/tenants/?q={KEY}", follow=True).content.decode()


@pytest.mark.parametrize("slashes", ["//", "///", "/////"])
def test_no_path_leads_to_another_site(slashes: str) -> None:
    request = RequestFactory().get("/")
    request.path = f"{slashes}elsewhere.example/{KEY}"
    answer = AddressesWithoutSecrets(lambda request: HttpResponse())(request)
    assert answer.status_code == 302 and answer["Location"].startswith("/elsewhere.example/")
