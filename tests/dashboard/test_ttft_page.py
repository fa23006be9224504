"""The page of TTFT deltas: matched cohorts, too few samples said so, and a tenant's people see their own alone."""

from __future__ import annotations

import math
import random
from datetime import datetime, timedelta
from itertools import pairwise
from urllib.parse import quote_plus

import pytest
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.audit.services import record
from controlplane.telemetry.cohorts import KINDS, Comparison, Deltas, deltas, hit_against_miss, names_with_traffic
from controlplane.telemetry.ingest import apply_entries
from controlplane.telemetry.shift import SAMPLES_MIN
from controlplane.telemetry.windows import Scope
from controlplane.tenants.member_services import grant_role
from controlplane.tenants.models import User
from dashboard import fragments
from dashboard.cohort_words import KIND_WORDS, LENGTHS, LOADS, ROLLOUT, comparison_of
from dashboard.scope import read_state
from router.adapters.telemetry_reach import Reach
from router.contract.cohorts import PROMPT_TOKENS_FROM, REQUESTS_BESIDE_FROM
from router.contract.telemetry import RequestRow, RouterState, Shipment, encode_shipment
from tests.dashboard import story

QUERIES_MAX = 12
STATE = RouterState(snapshot_version=1, snapshot_age_s=0, inflight=0, index_blocks=0, index_bytes=0)


def row(
    ms: float, count: int, *, namespace: str = "acme/support", worker: str = "demo/w1", model: str = "m",
    template: str = "", prompt: int = 1500, cached: int = 0, beside: int = 0, seed: int = 1,
) -> RequestRow:  # fmt: skip
    """`count` requests with first tokens around `ms`."""
    rng = random.Random(seed)
    made = RequestRow(
        tenant=namespace.split("/")[0], namespace=namespace, pool="demo", worker=worker, model=model,
        template=template, requests=count, usage_known=count,
    )  # fmt: skip
    reach = Reach()
    for _ in range(count):
        value = rng.lognormvariate(math.log(ms), 0.2)
        reach.count_ttft(made, ttft_ms=value, prompt_tokens=prompt, cached_tokens=cached, beside=beside)
    reach.put(made)
    return made


def told(at: datetime, *rows: RequestRow, router: str = "router-1", now: datetime | None = None) -> None:
    seq = int(at.timestamp())
    entry = Shipment(source=router, boot="b", seq=seq, at=at.timestamp(), requests=list(rows), router=STATE)
    assert not apply_entries([encode_shipment(entry)], now=now or at + timedelta(seconds=1)).refused


def compared(now: datetime, kind: str, a: str = "", b: str = "", **scope: str) -> Deltas:
    span = Scope(from_=now - timedelta(minutes=15), to=now, **scope)  # type: ignore[arg-type]
    names = (tuple(a.split(",")) if a else (), tuple(b.split(",")) if b else ())
    return deltas(span, comparison=Comparison(kind, a=names[0], b=names[1]), now=now)


def around(now: datetime, at: datetime, minutes: int = 15) -> Deltas:
    span = Scope(from_=now - timedelta(minutes=minutes), to=now)
    return deltas(span, comparison=Comparison("change", at=at), now=now)


@pytest.mark.django_db
def test_a_change_is_compared_with_the_time_before_it(now: datetime) -> None:
    at = now - timedelta(minutes=10)
    told(at - timedelta(minutes=4), row(600, 80, seed=1))
    told(at + timedelta(minutes=4), row(300, 60, seed=2))
    told(at - timedelta(hours=3), row(5, 500, seed=3), now=now)
    found = around(now, at)
    assert found.overall is not None and found.overall.told == "sooner"
    assert (found.overall.before_count, found.overall.after_count) == (80, 60)
    assert found.overall.ms == pytest.approx(-300, abs=40)
    assert found.overall.low_ms < -300 < found.overall.high_ms or found.overall.high_ms < -250


@pytest.mark.django_db
def test_the_minute_of_the_change_belongs_to_neither_side(now: datetime) -> None:
    at = (now - timedelta(minutes=5)).replace(second=30, microsecond=0)
    told(at, row(600, 80))
    found = around(now, at)
    assert found.samples == 0
    assert (found.before_span.to, found.after_span.from_) == (
        at.replace(second=0), at.replace(second=0) + timedelta(minutes=1),
    )  # fmt: skip


@pytest.mark.django_db
def test_longer_prompts_are_no_effect_of_the_change(now: datetime) -> None:
    """Afterwards most prompts are long, and slow for that; each length is as fast as before."""
    at = now - timedelta(minutes=8)
    told(at - timedelta(minutes=3), row(100, 200, seed=1), row(900, 40, prompt=6000, seed=2))
    told(at + timedelta(minutes=3), row(100, 40, seed=3), row(900, 200, prompt=6000, seed=4))
    found = around(now, at)
    assert found.overall is not None and found.overall.told == "same"
    assert [cohort.length for cohort in found.cohorts] == [1, 2]


@pytest.mark.django_db
def test_a_cohort_on_one_side_alone_is_told_apart_and_not_compared(now: datetime) -> None:
    told(now - timedelta(minutes=3), row(300, 50, worker="demo/w1"), row(300, 50, worker="demo/w2"),
         row(50, 50, worker="demo/w2", beside=5), row(300, SAMPLES_MIN - 1, worker="demo/w1", prompt=100),
         row(300, 50, worker="demo/w2", prompt=100))  # fmt: skip
    found = compared(now, "worker", "demo/w1", "demo/w2")
    by_key = {(cohort.length, cohort.load): cohort for cohort in found.cohorts}
    assert by_key[1, 0].shift is not None
    assert by_key[1, 2].shift is None and by_key[1, 2].before_count == 0
    assert by_key[0, 0].shift is None and by_key[0, 0].before_count == SAMPLES_MIN - 1
    assert found.compared_share == pytest.approx(100 / (100 + 50 + SAMPLES_MIN - 1 + 50))


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("kind", "a", "b"),
    [
        ("cache", "", ""), ("namespace", "acme/support", "globex/agents"), ("template", "acme/t@1", "globex/t@1"),
        ("model", "m", "n"), ("worker", "demo/w1", "demo/w2"), ("worker", "demo/w1,demo/w9", "demo/w2"),
        ("router", "router-1", "router-2"),
    ],
)  # fmt: skip
def test_every_kind_compares_its_two_sides(now: datetime, kind: str, a: str, b: str) -> None:
    at = now - timedelta(minutes=4)
    told(at, row(600, 50, template="t@1"))
    other = {"namespace": "globex/agents", "worker": "demo/w2", "model": "n" if kind == "model" else "m"}
    told(at, row(200, 50, template="t@1", cached=1400, seed=2, **other), router="router-2")  # type: ignore[arg-type]
    found = compared(now, kind, a, b)
    assert found.overall is not None, found
    assert (found.overall.told, found.overall.before_count, found.overall.after_count) == ("sooner", 50, 50)


@pytest.mark.django_db
def test_hits_and_misses_are_compared_length_by_length(now: datetime) -> None:
    told(
        now - timedelta(minutes=3), row(100, 30, cached=1000, beside=5), row(500, 30, seed=2), row(800, 5, prompt=9000)
    )
    bands = hit_against_miss(Scope(from_=now - timedelta(minutes=15), to=now), now=now)
    assert bands[1].shift is not None and bands[1].shift.told == "sooner"
    assert bands[1].hit_ms == pytest.approx(100, rel=0.2) and bands[1].miss_ms == pytest.approx(500, rel=0.2)
    assert (bands[3].miss_count, bands[3].hit_count, bands[3].shift) == (5, 0, None)


@pytest.mark.django_db
def test_a_tenant_in_the_scope_holds_whatever_is_named(now: datetime) -> None:
    told(now - timedelta(minutes=3), row(600, 50), row(200, 50, namespace="globex/agents", seed=2))
    for kind, name in (("namespace", "globex/agents"), ("template", "globex/t@1")):
        foreign = compared(now, kind, "acme/support", name, tenant="acme")
        assert "of acme" in foreign.refused and foreign.samples == 0
    for kind in ("worker", "router"):
        refused = compared(now, kind, "demo/w1", "demo/w2", tenant="acme")
        assert "all tenants together" in refused.refused and refused.samples == 0
        assert names_with_traffic(Scope(now - timedelta(minutes=9), now, tenant="acme"), kind=kind, now=now) == []


@pytest.mark.django_db
def test_what_has_traffic_is_suggested(now: datetime) -> None:
    told(now - timedelta(minutes=3), row(600, 5, template="t@1"), row(200, 5, namespace="globex/agents", model="n"))
    scope = Scope(now - timedelta(minutes=9), now)
    suggested = {
        kind: names_with_traffic(scope, kind=kind, now=now) for kind in KINDS if kind not in ("cache", "change")
    }
    assert suggested == {
        "namespace": ["acme/support", "globex/agents"],
        "template": ["acme/t@1"],
        "model": ["m", "n"],
        "worker": ["demo/w1"],
        "router": ["router-1"],
    }


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, Comparison()),
        ({"only": "nosuch"}, Comparison()),
        ({"only": "worker", "a": " p/w1, p/w2,", "b": "p/w3"}, Comparison("worker", a=("p/w1", "p/w2"), b=("p/w3",))),
        ({"only": "change", "at": "yesterday"}, Comparison("change")),
        ({"only": "rollout", "a": "x"}, Comparison("router")),
    ],
)
def test_the_address_says_what_is_compared(query: dict[str, str], expected: Comparison, now: datetime) -> None:
    assert comparison_of(read_state(query, now=now), now=now) == expected


def test_a_time_without_zone_is_the_pages(now: datetime) -> None:
    state = read_state(
        {"only": "change", "at": "2026-05-01T12:00", "tz": "Europe/Berlin"}, now=now, zones=("Europe/Berlin",)
    )
    at = comparison_of(state, now=now).at
    assert at is not None and at.isoformat() == "2026-05-01T12:00:00+02:00"


def test_every_band_has_words_that_say_its_limits() -> None:
    assert len(LENGTHS) == len(PROMPT_TOKENS_FROM) and len(LOADS) == len(REQUESTS_BESIDE_FROM)
    for begins, (words, after) in zip(PROMPT_TOKENS_FROM[1:], pairwise(LENGTHS), strict=True):
        limit = str(begins) if begins < 1024 else str(begins // 1024)
        assert limit in words and limit in after
    for begins, words in zip(REQUESTS_BESIDE_FROM[1:], LOADS[1:], strict=True):
        assert str(begins) in words


@pytest.mark.django_db
def test_the_page_says_what_caching_is_worth(viewer: Client, fleet: None) -> None:
    page = viewer.get("/ttft/").content.decode()
    assert "sooner where the prompt was cached" in page
    assert "512 – 2 k tokens" in page and "Difference by cohort" in page


@pytest.mark.django_db
def test_changes_of_the_audit_log_are_offered(viewer: Client, fleet: None) -> None:
    with transaction.atomic():
        entry = record(actor="user:olga", action="watermark.set", object_type="watermark", object_id="pool:demo",
                       before=None, after={}, affects_routing=False)  # fmt: skip
    page = viewer.get("/ttft/?only=change").content.decode()
    assert "watermark pool:demo set" in page and "user:olga" not in page
    assert entry.at.isoformat().replace("+", "%2B").replace(":", "%3A") in page
    answer = viewer.get("/ttft/", {"only": "change", "at": entry.at.isoformat()})
    assert "less than a minute old" in answer.content.decode()


@pytest.mark.django_db
def test_an_empty_page_names_the_next_step(viewer: Client) -> None:
    page = viewer.get("/ttft/").content.decode()
    assert "Too few samples" in page and "Choose a longer range" in page


@pytest.mark.django_db
def test_the_page_asks_few_questions(viewer: Client, fleet: None) -> None:
    for query in (
        "",
        "tenant=acme",
        "only=change&at=2026-01-01",
        "only=worker&a=demo/w1&b=demo/w2",
        "only=rollout&a=1",
    ):
        fragments.forget()
        with CaptureQueriesContext(connection) as asked:
            assert viewer.get(f"/ttft/?{query}").status_code == 200
        assert len(asked) <= QUERIES_MAX, [query["sql"][:120] for query in asked]


FOREIGN = {"namespace": "globex/agents", "template": "globex/t@1", "worker": "demo/w1", "router": "router-1"}


@pytest.mark.django_db
def test_a_member_sees_the_own_tenant_alone_whatever_is_asked(client: Client, fleet: None) -> None:
    member = User.objects.create_user(username="alice", password=story.PASSWORD)
    grant_role(actor="user:test", username="alice", role=User.Role.VIEWER, tenant="acme")
    client.force_login(member)
    for kind in (*KINDS, ROLLOUT):
        query = {"only": kind, "a": FOREIGN.get(kind, "1"), "b": "acme/support"}
        for address in ("/ttft/", "/fragments/ttft/", "/charts/delta-cohorts/table/", "/charts/delta-cohorts.csv"):
            answer = client.get(address, query)
            assert answer.status_code == 200, address
            # What they typed themselves comes back in the form and in the links that keep it.
            typed = FOREIGN.get(kind, "1")
            text = answer.content.decode().replace(f'value="{typed}"', "").replace(quote_plus(typed), "")
            assert not any(name in text for name in ("globex", "demo/w", "initech", "router-1")), (kind, address)
    offered = client.get("/ttft/").content.decode()
    assert KIND_WORDS["namespace"] in offered and KIND_WORDS["worker"] not in offered
