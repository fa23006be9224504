"""The evictions page: what is evicted, for whom, and what it costs."""

from __future__ import annotations

from datetime import datetime

import pytest
from django.test import Client

from controlplane.policies.services import set_watermark
from dashboard import fragments
from dashboard.evictions import NAMES_SHOWN, matrix_of
from tests.dashboard import eviction_story, story

QUERIES_MAX = 12


@pytest.fixture
def churning(db: None, now: datetime) -> None:
    story.make_fleet()
    eviction_story.tell(now)


def text_of(client: Client, path: str = "/evictions/") -> str:
    answer = client.get(path)
    assert answer.status_code == 200
    text = answer.content.decode()
    assert "style=" not in text, "the content security policy refuses inline styles"
    return text


def panel(text: str, name: str) -> str:
    return text.split(f'id="panel-{name}"')[1].split("</section>")[0]


def test_it_says_in_a_sentence_what_eviction_costs(viewer: Client, churning: None) -> None:
    facts = panel(text_of(viewer), "eviction_facts")
    # 36 seconds × 3 workers × 25 blocks of 16 tokens at the pool's 9,000 tokens a second.
    assert "25.0 % of the evicted blocks came back within 5 min: computing them again took 4.8 s of GPU time." in facts
    assert "10.8 k" in facts and "2,700" in facts and "19.2 s an hour" in facts


def test_it_shows_who_evicts_whom_and_what_is_not_attributed(viewer: Client, churning: None) -> None:
    text = panel(text_of(viewer), "evicters")
    assert "(inferred)" in text and "not known" in text and "other namespaces" in text
    assert "6.0 %" in text, "of a hundred blocks six have no evictor"
    assert "21.3 %" in text, "of the other 94 twenty were evicted for their own namespace"
    assert 'data-level="4">6,480<' in text


def test_it_prices_what_each_namespace_lost(viewer: Client, churning: None) -> None:
    text = panel(text_of(viewer), "eviction_namespaces")
    assert text.index("acme/support") < text.index("globex/agents")
    assert "2,160" in text and "34.6 k" in text


def test_workers_show_their_time_at_the_watermarks(viewer: Client, churning: None) -> None:
    text = panel(text_of(viewer), "eviction_workers")
    busy = text.split("demo/w2")[2].split("</tr>")[0]
    assert 'data-tone="warn">100.0 %' in busy
    silent = text.split("demo/w4")[2].split("</tr>")[0]
    assert silent.count("–") >= 5, "what was not heard is unknown, not zero"


def test_the_bands_are_those_of_the_pool(viewer: Client, churning: None) -> None:
    assert "high 85%" in panel(text_of(viewer), "watermark_bands")
    set_watermark(actor="user:olga", scope="pool:demo", low=0.5, high=0.8)
    fragments.forget()
    assert "high 80%" in panel(text_of(viewer), "watermark_bands")


def test_an_empty_fleet_says_what_is_missing(viewer: Client, db: None) -> None:
    text = text_of(viewer)
    assert "No KV events in this range: churn is unknown." in text
    assert "NaN" not in text and "None" not in text


def test_it_stays_within_its_queries(viewer: Client, churning: None, django_assert_max_num_queries: object) -> None:
    fragments.forget()
    with django_assert_max_num_queries(QUERIES_MAX):  # type: ignore[operator]
        assert viewer.get("/evictions/").status_code == 200


def test_everything_is_offered_as_table_and_csv(viewer: Client, churning: None) -> None:
    for name in ("watermark_bands", "lifetimes", "evicters", "eviction_workers"):
        assert viewer.get(f"/charts/{name}/table/").status_code == 200
    csv = viewer.get("/charts/evicters.csv").content.decode().splitlines()
    assert "globex/agents,acme/support,6480" in csv
    assert "≤ 3 s,2160,540" in viewer.get("/charts/lifetimes.csv").content.decode()


def test_many_namespaces_are_folded_into_others() -> None:
    evicted = {(f"t/{number}", "t/0"): 100 - number for number in range(20)} | {("", "t/0"): 7}
    matrix = matrix_of(evicted)
    assert [row.evictor for row in matrix.rows][-2:] == ["other namespaces", "not known"]
    assert len(matrix.rows) == NAMES_SHOWN + 2
    assert sum(row.total for row in matrix.rows) == sum(evicted.values())
    assert matrix.unknown_share == pytest.approx(7 / sum(evicted.values()))
    assert matrix_of({}).rows == []
