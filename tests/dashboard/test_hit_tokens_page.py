"""The hit-tokens page: what could be had, what was, where the rest was lost, and who may see whose."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.telemetry.available import reach_by_namespace, reach_by_worker, reach_series
from controlplane.telemetry.available_figures import CAUSES as CAUSE_NAMES
from controlplane.telemetry.available_figures import Reach
from controlplane.telemetry.ingest import apply_entries
from controlplane.telemetry.selectors import last_minutes
from controlplane.telemetry.windows import Scope
from controlplane.tenants.member_services import grant_role
from controlplane.tenants.models import User
from dashboard import fragments, reach_words
from dashboard.charts.hits import funnel_rows
from router.contract.histogram import observe
from router.contract.telemetry import RequestRow, RouterState, Shipment, encode_shipment
from tests.dashboard import story

QUERIES_MAX = 12
STATE = RouterState(snapshot_version=1, snapshot_age_s=0, inflight=0, index_blocks=0, index_bytes=0)


def told(now: datetime, *rows: RequestRow, router: str = "router-1", seq: int = 1) -> None:
    entry = Shipment(source=router, boot="b", seq=seq, at=now.timestamp() - 30, requests=list(rows), router=STATE)
    assert not apply_entries([encode_shipment(entry)], now=now).refused


def reach(namespace: str = "acme/support", worker: str = "demo/w1", **values: int | dict[str, int]) -> RequestRow:
    sizes: dict[int, int] = {}
    observe(sizes, 300)
    given = {
        "requests": 1, "usage_known": 1, "hit_known": 1, "prompt_tokens": 1000, "hit_prompt_tokens": 1000,
        "hit_tokens": 300, "expected_hit_tokens": 350, "best_hit_tokens": 450, "repeated_tokens": 700,
        "routing_loss": {"load": 100}, "hit_size": sizes, "saved_prefill_ms": 60.0,
    }  # fmt: skip
    dims = {"tenant": namespace.split("/")[0], "namespace": namespace, "pool": "demo", "worker": worker, "model": "m"}
    return RequestRow(**(dims | given | values))  # type: ignore[arg-type]


@pytest.mark.django_db
def test_the_losses_are_those_of_the_routers(now: datetime) -> None:
    told(now, reach(), reach(prompt_tokens=1500, unjudged_tokens=80))
    total = reach_series(last_minutes(15, now=now), now=now).total
    assert total is not None
    assert total.prompt_tokens == 2500
    assert total.losses == {"workload": 520, "eviction": 500, "routing": 200, "stale": 100, "unknown": 580}
    assert sum(total.losses.values()) == total.prompt_tokens - total.hit_tokens
    assert tuple(total.losses) == CAUSE_NAMES


@pytest.mark.django_db
def test_two_routers_add_up_and_other_tenants_stay_out(now: datetime) -> None:
    told(now, reach(), reach("globex/agents"))
    told(now, reach(), router="router-2")
    scope = last_minutes(15, now=now)
    assert reach_series(scope, now=now).total.prompt_tokens == 3000  # type: ignore[union-attr]
    acme = last_minutes(15, now=now, tenant="acme")
    assert reach_series(acme, now=now).total.prompt_tokens == 2000  # type: ignore[union-attr]
    assert [each.name for each in reach_by_namespace(acme, now=now)[0]] == ["acme/support"]
    assert {each.name for each in reach_by_namespace(scope, now=now)[0]} == {"acme/support", "globex/agents"}


@pytest.mark.django_db
def test_an_idle_bucket_is_zero_and_one_without_routers_a_gap(now: datetime) -> None:
    told(now)
    series = reach_series(last_minutes(15, now=now, tenant="acme"), now=now)
    assert series.total is not None and series.total.prompt_tokens == 0
    assert {value for value in series.prompt_tokens if value is not None} == {0.0}
    assert None in series.prompt_tokens


@pytest.mark.django_db
def test_what_lost_most_comes_first(now: datetime) -> None:
    told(now, reach(worker="demo/w1"), reach(worker="demo/w2", hit_tokens=10), reach(worker="demo/w3", hit_tokens=200))
    rows = reach_by_worker(last_minutes(15, now=now), now=now)
    assert [each.name for each in rows] == ["demo/w2", "demo/w3", "demo/w1"]


@pytest.mark.django_db
@pytest.mark.parametrize("span", [timedelta(minutes=20), timedelta(hours=7), timedelta(days=3), timedelta(days=9)])
def test_rankings_hold_what_the_span_holds(now: datetime, span: timedelta) -> None:
    told(now, reach())
    scope = Scope(from_=now - span, to=now)
    assert reach_by_namespace(scope, now=now)[0][0].reach.prompt_tokens == 1000
    assert reach_series(scope, now=now).total.prompt_tokens == 1000  # type: ignore[union-attr]


@pytest.mark.parametrize("cause", CAUSE_NAMES)
def test_every_cause_has_its_sentence(cause: str) -> None:
    lost = dict.fromkeys(CAUSE_NAMES, 10) | {cause: 600}
    best = lost["routing"] + lost["stale"] + 100
    repeated = best + lost["eviction"]
    prompt = repeated + lost["workload"] + lost["unknown"]
    found = Reach(3, prompt, repeated, best, best - lost["routing"], 100, lost["unknown"], 0.0)
    assert found.losses == lost and found.main_cause == cause
    words = reach_words.sentence(found)
    assert reach_words.CAUSES[cause].explains in words and words.endswith(".")
    rows = funnel_rows(found)
    assert rows[0][1] == prompt and rows[-1][1] == 100
    for (_, tokens, below), (label, after, _) in pairwise(rows):
        assert after <= (below or tokens), label


def test_a_span_without_prompts_is_unknown_not_zero() -> None:
    nothing = Reach(0, 0, 0, 0, 0, 0, 0, 0.0)
    assert nothing.share(0) is None and nothing.main_cause == ""
    assert reach_words.headline(None)[0] == "No router has reported in this range"
    assert reach_words.headline(nothing)[0] == "No prompts in this range"


@pytest.mark.django_db
def test_the_page_shows_each_of_its_panels(viewer: Client, fleet: None) -> None:
    page = viewer.get("/hits/").content.decode()
    for words in ("Where prompt tokens are lost", "By namespace", "By worker", "demo/w2", "acme/support", "Delivered"):
        assert words in page, words
    assert "unknown: no price is set" in page and "TIDEMARK_GPU_HOUR_COST" in page


@pytest.mark.django_db
def test_a_configured_price_makes_a_cost(viewer: Client, now: datetime, settings: object) -> None:
    settings.CONFIG = settings.CONFIG.model_copy(update={"gpu_hour_cost": 3600.0, "cost_currency": "EUR"})  # type: ignore[attr-defined]
    # Six seconds of prefill saved since the minute began that holds the report.
    told(now, reach(saved_prefill_ms=6000))  # type: ignore[arg-type]
    page = viewer.get("/hits/").content.decode()
    assert "EUR/h" in page and "at 3,600 EUR a GPU-hour" in page


@pytest.mark.django_db
def test_an_empty_page_names_the_next_step(viewer: Client) -> None:
    page = viewer.get("/hits/").content.decode()
    assert "No router has reported in this range" in page
    assert "Send a request through the router, or choose a longer range." in page


@pytest.mark.django_db
def test_the_page_asks_few_questions(viewer: Client, fleet: None) -> None:
    for query in ("", "?tenant=acme", "?worker=demo/w2", "?from=-7d"):
        fragments.forget()
        with CaptureQueriesContext(connection) as asked:
            assert viewer.get(f"/hits/{query}").status_code == 200
        assert len(asked) <= QUERIES_MAX, [query["sql"][:120] for query in asked]


@pytest.mark.django_db
def test_a_member_sees_the_own_tenant_alone_and_no_workers(client: Client, fleet: None) -> None:
    member = User.objects.create_user(username="alice", password=story.PASSWORD)
    grant_role(actor="user:test", username="alice", role=User.Role.VIEWER, tenant="acme")
    client.force_login(member)
    for address in ("/hits/", "/fragments/hits/", "/charts/reach-funnel/table/", "/charts/reach-series.csv"):
        answer = client.get(address)
        assert answer.status_code == 200, address
        assert "globex" not in answer.content.decode() and "demo/w" not in answer.content.decode()
    assert "acme/support" in client.get("/hits/").content.decode()
    assert client.get("/hits/?tenant=globex").status_code == 404
    assert client.get("/hits/?ns=globex/agents").status_code == 200
    # What they typed themselves comes back in the form that saves the view.
    foreign = client.get("/hits/?ns=globex/agents").content.decode().replace("ns=globex%2Fagents", "")
    assert "globex" not in foreign
    assert client.get("/fragments/panel/reach-workers/").status_code == 403
