"""What is to go says since when and until when; nobody can give less notice than is promised."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.urls import path
from drf_spectacular.generators import SchemaGenerator
from rest_framework.test import APIRequestFactory, force_authenticate

from controlplane.api.deprecation import NOTICE, Deprecation, deprecated
from controlplane.api.tenants import TenantList
from controlplane.tenants.models import User

SINCE = datetime(2027, 1, 1, tzinfo=UTC)
SUNSET = datetime(2027, 8, 1, 12, tzinfo=UTC)


@deprecated(since=SINCE, sunset=SUNSET, successor="https://tidemark.example/docs/api.md#tenants")
class _Going(TenantList):
    pass


def _answer(view: type[TenantList]):
    request = APIRequestFactory().get("/api/v1/tenants")
    force_authenticate(request, User.objects.create_user(f"olga-{view.__name__}", role="operator"))
    return view.as_view()(request)


@pytest.mark.django_db
def test_answers_of_what_is_to_go_carry_both_dates_and_the_successor() -> None:
    answer = _answer(_Going)
    assert answer.status_code == 200
    assert answer["Deprecation"] == "@1798761600"
    assert answer["Sunset"] == "Sun, 01 Aug 2027 12:00:00 GMT"
    assert answer["Link"] == '<https://tidemark.example/docs/api.md#tenants>; rel="deprecation"'


@pytest.mark.django_db
def test_what_stays_carries_none_of_them() -> None:
    answer = _answer(TenantList)
    assert not {"Deprecation", "Sunset", "Link"} & set(answer.headers)


def test_the_schema_marks_its_operations() -> None:
    going, staying = path("api/v1/going", _Going.as_view()), path("api/v1/t", TenantList.as_view())
    generator = SchemaGenerator(patterns=[going, staying])
    paths = generator.get_schema(request=None, public=True)["paths"]
    assert paths["/api/v1/going"]["get"]["deprecated"] is True
    assert "deprecated" not in paths["/api/v1/t"]["get"]


@pytest.mark.parametrize("sunset", [SINCE + NOTICE - timedelta(seconds=1), SINCE, SUNSET.replace(tzinfo=None)])
def test_less_notice_than_promised_is_refused(sunset: datetime) -> None:
    with pytest.raises(ValueError, match=r"notice|aware"):
        Deprecation(SINCE, sunset)
