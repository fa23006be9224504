"""The pages of what if: asked by form, each tenant's own, few queries, differences that chance cannot explain."""

from __future__ import annotations

from datetime import datetime

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.what_if.models import WhatIf
from dashboard.what_if_table import comparison_of, csv_of
from tests.dashboard import story
from tests.dashboard.people import html_of, member
from tests.what_if.conftest import ask

QUERIES_MAX = 12
FORM = {"pool": "demo", "span": "60", "seeds": "1", "gpus_per_worker": "1", "gpu_currency": "EUR"}


@pytest.fixture
def operator(recorded: datetime) -> Client:
    client = Client()
    client.force_login(story.make_user("olga"))
    return client


def test_each_filled_field_is_a_scenario(operator: Client) -> None:
    answer = operator.post(
        "/what-if/ask/",
        FORM | {"more_workers": "2", "fewer_workers": "1", "low": "50", "high": "75 %", "load_factor": "1,5",
                "together": "on"},
    )  # fmt: skip
    row = WhatIf.objects.get()
    assert answer.status_code == 302 and answer["location"].startswith(f"/what-if/{row.pk}/")
    assert [scenario["name"] for scenario in row.question["scenarios"]] == [
        "as it is", "2 more workers", "1 fewer worker", "watermarks 50–75 %", "load × 1.5", "all of these at once",
    ]  # fmt: skip
    assert row.question["scenarios"][-1] == {
        "name": "all of these at once", "workers": 6, "low": 0.5, "high": 0.75, "load_factor": 1.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ({}, "Fill in at least one change"),
        ({"more_workers": "two"}, "This is not a number"),
        ({"low": "90", "high": "80"}, "must be below the high one"),
        ({"fewer_workers": "4"}, "The pool has 4"),
        ({"load_factor": "99"}, "Between 0.1 and 10"),
    ],
)
def test_what_is_wrong_stands_at_its_field(operator: Client, typed: dict[str, str], words: str) -> None:
    answer = operator.post("/what-if/ask/", FORM | typed)
    assert answer.status_code == 422 and words in answer.content.decode()
    assert not WhatIf.objects.exists()


def test_the_address_fills_the_form_in(operator: Client) -> None:
    html = html_of(operator, "/what-if/ask/?pool=demo&low=40&high=70")
    assert 'name="low" value="40"' in html and 'name="more_workers" value=""' in html
    assert 'name="more_workers" value="1"' in html_of(operator, "/what-if/ask/")


def test_without_recorded_traffic_the_page_says_what_is_needed(db: None) -> None:
    story.make_fleet()
    client = Client()
    client.force_login(story.make_user("olga"))
    for path in ("/what-if/", "/what-if/ask/"):
        assert "TIDEMARK_ROUTER_RECORDED_PER_S" in html_of(client, path)


def test_alice_and_bob_see_acmes_and_charlie_does_not(operator: Client, recorded: datetime) -> None:
    fleet = ask(recorded)
    own = ask(recorded, tenant="acme", scenarios=[{"load_factor": 2}])
    _settled(own)
    alice, bob = member("alice", "tenant_admin", "acme"), member("bob", "viewer", "acme")
    charlie = member("charlie", "tenant_admin", "globex")
    for client in (alice, bob):
        assert "load × 2" in html_of(client, "/what-if/")
        html = html_of(client, f"/what-if/{own.pk}/")
        assert "Simulated 70.0 % hits, measured 60.0 %" in html and "4 workers" not in html and "EUR" not in html
        assert "workers" not in client.get(f"/what-if/{own.pk}.csv").content.decode()
        assert client.get(f"/what-if/{fleet.pk}/").status_code == 404
    assert "load × 2" not in html_of(charlie, "/what-if/")
    for path in (f"/what-if/{own.pk}/", f"/what-if/{own.pk}.csv"):
        assert charlie.get(path).status_code == 404
    assert charlie.post(f"/what-if/{own.pk}/cancel/").status_code == 404
    assert "More workers" not in html_of(alice, "/what-if/ask/")


def test_pages_ask_little_of_the_database(operator: Client, recorded: datetime) -> None:
    _settled(ask(recorded))
    for path in ("/what-if/", "/what-if/ask/", f"/what-if/{WhatIf.objects.get().pk}/"):
        operator.get(path)
        with CaptureQueriesContext(connection) as asked:
            assert operator.get(path).status_code == 200
        assert len(asked) <= QUERIES_MAX, (path, len(asked))


def test_a_dry_run_leads_to_the_form_with_its_values(operator: Client) -> None:
    answer = operator.post(
        "/policies/pool/demo/", {"low": "55", "high": "75", "dwell_s": "0", "revision": "0", "how": "preview"}
    )
    assert "/what-if/ask/?pool=demo&amp;low=55&amp;high=75" in answer.content.decode()


def test_a_difference_counts_where_the_runs_do_not_meet() -> None:
    found = comparison_of(_answer(), currency="EUR")
    as_it_is, better, chance = (row.cells[0] for row in found.rows)
    assert (as_it_is.text, as_it_is.spread, as_it_is.difference) == ("70.0 %", "68.0 % – 72.0 %", "")
    assert better.certain and better.better and better.best and better.difference == "+10.0 points"
    assert not chance.certain and not chance.best and chance.difference == "+1.0 points"
    worse = found.rows[1].cells[2]
    assert worse.certain and not worse.better and worse.difference == "+100 ms"
    assert found.accuracy[0] == "Simulated 70.0 % hits, measured 60.0 %: 10.0 points too many." and not found.far
    assert ["more", "hit_token_share", 0.8, 0.79, 0.81] in csv_of(_answer()).rows


def _answer() -> dict[str, object]:
    def scenario(name: str, hits: tuple[float, float, float], ttft: float, cost: float) -> dict[str, object]:
        figures = dict.fromkeys(("ttft_p50_s", "goodput_share", "evictions_per_min", "gpu_seconds_prefill"))
        interval = dict(zip(("mean", "low", "high"), hits, strict=True))
        ttfts = {"mean": ttft, "low": ttft, "high": ttft}
        own = {"name": name, "workers": 4, "hit_token_share": interval, "ttft_p95_s": ttfts, "cost_per_h": cost}
        return own | figures

    return {
        "scenarios": [
            scenario("as it is", (0.7, 0.68, 0.72), 0.1, 10),
            scenario("more", (0.8, 0.79, 0.81), 0.2, 12),
            scenario("chance", (0.71, 0.69, 0.73), 0.1, 10),
        ],
        "measured": {"hit_token_share": 0.6, "ttft_p50_s": 0.1, "ttft_p95_s": 0.1},
        "sampled": {"share": 1.0, "scaled": "Every session was recorded.", "dropped": 0},
        "seeds": [1, 2],
        "slice_workers": None,
        "block_tokens": 512,
    }


def _settled(row: WhatIf) -> None:
    WhatIf.objects.filter(pk=row.pk).update(state=WhatIf.State.DONE, answer=_answer(), requests=96)
