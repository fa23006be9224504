"""The hot-spots pages: what is hot, what spreading would do, and spreading it."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.audit.models import AuditEntry
from controlplane.placements.models import PlacementRule
from controlplane.tenants.models import Membership, Tenant
from controlplane.tenants.roles import Role
from dashboard import fragments
from tests.dashboard import hot_story, story
from tests.dashboard.hot_story import HOT, WARM

QUERIES_MAX = 12
PREFIX_PAGE = f"/hotspots/demo/{HOT}/"


@pytest.fixture
def hot(db: None, now: datetime) -> None:
    story.make_fleet()
    story.tell(now, minutes=1)
    hot_story.tell_hot(now, minutes=3)


def text_of(client: Client, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200, path
    text = answer.content.decode()
    assert "style=" not in text, "the content security policy refuses inline styles"
    return text


def panel(text: str, name: str) -> str:
    return text.split(f'id="panel-{name}"')[1].split("</section>")[0]


def test_it_lists_the_hottest_prefixes_with_their_workers(viewer: Client, hot: None) -> None:
    text = panel(text_of(viewer, "/hotspots/"), "prefixes")
    assert text.index(HOT) < text.index(WARM)
    assert "w2 84 %" in text and "6.14 k" in text and "87.2 %" in text
    assert "by a placement rule for 3" in text


def test_it_says_how_unequal_the_load_is(viewer: Client, hot: None) -> None:
    text = text_of(viewer, "/hotspots/")
    assert "Gini, load by worker" in panel(text, "imbalance")
    assert "17 prefixes" in panel(text, "concentration") and "4 workers" in panel(text, "balance")
    assert "left the longest match" in panel(text, "match")


def test_rules_are_listed_with_their_effect(viewer: Client, operator: Client, hot: None) -> None:
    text = panel(text_of(viewer, "/hotspots/"), "placements")
    assert "until" in text and "reverted" in text and "launch day" in text
    assert "Revert<" not in text
    assert "Revert<" in panel(text_of(operator, "/hotspots/"), "placements")


def test_an_empty_fleet_says_what_is_missing(viewer: Client, db: None) -> None:
    text = text_of(viewer, "/hotspots/")
    assert "No hot prefixes in this range." in text and "No placement rule." in text
    assert "NaN" not in text and "None" not in text


@pytest.mark.parametrize("path", ["/hotspots/", PREFIX_PAGE])
def test_a_page_stays_within_its_queries(
    operator: Client, hot: None, path: str, django_assert_max_num_queries: object
) -> None:
    fragments.forget()
    with django_assert_max_num_queries(QUERIES_MAX):  # type: ignore[operator]
        assert operator.get(path).status_code == 200


def test_charts_are_tables_and_csv_too(viewer: Client, hot: None) -> None:
    for name in ("imbalance", "balance", "concentration", "match"):
        assert viewer.get(f"/charts/{name}/table/").status_code == 200
        assert len(viewer.get(f"/charts/{name}.csv").content.splitlines()) > 1, name
    csv = viewer.get(f"/charts/prefix_trend.csv?item=demo/{HOT}").content.decode()
    assert "demo/w2 (requests/s)" in csv and "queue (ms)" in csv


def test_one_prefix_shows_who_serves_holds_and_asks(viewer: Client, hot: None) -> None:
    text = text_of(viewer, PREFIX_PAGE)
    assert "acme/support" in panel(text, "prefix_askers")
    assert "demo/w2" in panel(text, "prefix_workers") and "yes" in panel(text, "prefix_workers")
    assert "hot-" in panel(text, "prefix_decisions")
    assert "Spreading needs the operator role." in text


def test_it_previews_what_so_many_homes_would_do(operator: Client, hot: None) -> None:
    text = text_of(operator, PREFIX_PAGE).split('id="spread"')[1].split("</section>")[0]
    assert "3 workers served it, the busiest 83.8 % of it" in text
    assert text.count("<tr") == 4, "two, three and four homes below the head"
    assert "1,152" in text, "three copies of 6,144 tokens in blocks of 16"
    assert "The pool states no KV bytes of a token" in text


def test_spreading_makes_an_audited_rule_and_reverting_ends_it(operator: Client, hot: None) -> None:
    answer = operator.post(
        PREFIX_PAGE, {"namespace": "acme/support", "homes": "3", "for_s": "3600", "reason": "launch"}
    )
    assert answer.status_code == 302 and answer["Location"].startswith(PREFIX_PAGE)
    rule = PlacementRule.objects.get(prefix=HOT, ended_at=None)
    assert (rule.homes, rule.created_by, rule.reason) == (3, "user:olga", "launch")
    assert timedelta(minutes=59) < rule.until - timezone.now() <= timedelta(hours=1)
    assert AuditEntry.objects.filter(action="placement.set", object_id=f"acme/support:demo:{HOT}").exists()
    text = text_of(operator, PREFIX_PAGE)
    assert "acme/support is spread over at least 3 workers" in text
    assert "Keep it" in text_of(operator, f"/hotspots/placements/{rule.pk}/revert/")
    assert operator.post(f"/hotspots/placements/{rule.pk}/revert/", {"revision": "9"}).status_code == 302
    assert PlacementRule.objects.get(pk=rule.pk).ended_at is None, "an older view changes nothing"
    assert operator.post(f"/hotspots/placements/{rule.pk}/revert/", {"revision": "1"}).status_code == 302
    assert PlacementRule.objects.get(pk=rule.pk).outcome == "reverted"


def test_wrong_input_is_refused_in_words_with_what_was_typed(operator: Client, hot: None) -> None:
    answer = operator.post(PREFIX_PAGE, {"namespace": "acme/support", "homes": "99", "for_s": "3600", "reason": "kept"})
    assert answer.status_code == 422
    assert 'value="kept"' in answer.content.decode()
    assert operator.post(PREFIX_PAGE, {"namespace": "acme/none", "homes": "3", "for_s": "60"}).status_code == 404
    assert not PlacementRule.objects.filter(prefix=HOT, ended_at=None).exists()


def test_who_may_only_look_spreads_nothing(viewer: Client, hot: None) -> None:
    assert viewer.post(PREFIX_PAGE, {"namespace": "acme/support", "homes": "3", "for_s": "60"}).status_code == 403
    rule = PlacementRule.objects.get(prefix=WARM)
    assert viewer.post(f"/hotspots/placements/{rule.pk}/revert/").status_code == 403


def test_a_tenants_own_sees_its_prefixes_and_rules_alone(hot: None) -> None:
    user = story.make_user("anna", role="")
    Membership.objects.create(user=user, role=Role.TENANT_ADMIN, tenant=Tenant.objects.get(slug="acme"))
    client = Client()
    client.force_login(user)
    text = text_of(client, "/hotspots/")
    assert HOT in text and WARM not in text and "globex" not in text
    assert 'id="panel-imbalance"' not in text and 'id="panel-balance"' not in text
    assert "Spread over more workers" not in text_of(client, PREFIX_PAGE)
    foreign = text_of(client, f"/hotspots/demo/{WARM}/")
    assert "No request of this prefix in this range." in foreign and "globex" not in foreign
    assert client.post(PREFIX_PAGE, {"namespace": "acme/support", "homes": "3", "for_s": "60"}).status_code == 403


def test_no_such_prefix_or_rule_is_not_found(operator: Client, db: None) -> None:
    assert operator.get("/hotspots/demo/short/").status_code == 404
    assert operator.get("/hotspots/placements/77/revert/").status_code == 404
