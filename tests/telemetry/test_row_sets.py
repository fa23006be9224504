"""Rows by their keys: what is written is read again, and no other row is touched."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane import row_sets
from controlplane.fleet.models import Worker, WorkerPool, WorkerStatus
from controlplane.row_sets import RowSet
from controlplane.telemetry.merge import REQUESTS, WORKERS, Contribution
from controlplane.telemetry.models import RequestRollup, WorkerRollup
from controlplane.telemetry.rollups import REQUEST_TABLE, WORKER_TABLE, add

NOON = datetime(2026, 5, 17, 12, tzinfo=UTC)
ROWS = RowSet(WorkerRollup, ("width_s", "start", "worker"), WORKERS.values)

pytestmark = pytest.mark.django_db


def key(worker: str, *, seconds: int = 0, width_s: int = 10) -> tuple[int, datetime, str]:
    return width_s, NOON + timedelta(seconds=seconds), worker


def test_what_is_written_is_read_again():
    values = {"polls_ok": 3, "kv_use_sum": 0.1 + 0.2, "ttft_buckets": {"0.1": 2, "+Inf": 1}, "stored_blocks": 2**53 + 1}
    ROWS.upsert([(key("p/w1"), values)])
    [found] = ROWS.read([key("p/w1")]).values()
    assert {name: found[name] for name in values} == values
    assert (found["polls_failed"], found["queue_buckets"], found["resident_blocks"]) == (0, {}, None)


def test_only_rows_with_a_wanted_key_are_read_and_overwritten():
    other = [key("p/w2"), key("p/w1", seconds=10), key("p/w1", width_s=60)]
    ROWS.upsert([(each, {"polls_ok": 7}) for each in [key("p/w1"), *other]])
    assert set(ROWS.read([key("p/w1"), key("p/none")])) == {key("p/w1")}
    ROWS.upsert([(key("p/w1"), {"polls_ok": 8})])
    assert {each: row["polls_ok"] for each, row in ROWS.read([key("p/w1"), *other]).items()} == {
        key("p/w1"): 8, **dict.fromkeys(other, 7),
    }  # fmt: skip


def test_names_that_look_like_sql_or_json_are_names():
    names = ['p/"; DROP TABLE x; --', "p/%s", "p/{\\", "p/ü€", "p/'"]
    ROWS.upsert([(key(name), {"polls_ok": at}) for at, name in enumerate(names)])
    assert [ROWS.read([key(name)])[key(name)]["polls_ok"] for name in names] == list(range(len(names)))
    assert set(WorkerRollup.objects.values_list("worker", flat=True)) == set(names)


def test_more_rows_than_a_statement_takes_are_written_in_several(monkeypatch):
    monkeypatch.setattr(row_sets, "ROWS_MAX", 3)
    keys = [key(f"p/w{number}") for number in range(8)]
    ROWS.upsert([(each, {"polls_ok": 1}) for each in keys])
    with CaptureQueriesContext(connection) as asked:
        assert set(ROWS.read(keys)) == set(keys)
    assert len(asked) == 3


def test_what_is_only_inserted_stays_as_it_is():
    worker = Worker.objects.create(pool=WorkerPool.objects.create(slug="p"), slug="w1", url="http://127.0.0.1:1")
    rows = RowSet(
        WorkerStatus,
        ("worker",),
        ("polled_at", "error", "consecutive_failures"),
        also_inserted={"reading": {}, "counters": {}, "kv": {}},
    )
    rows.upsert([((worker.pk,), {"polled_at": NOON})])
    WorkerStatus.objects.update(kv={"state": "live"})
    rows.upsert([((worker.pk,), {"polled_at": NOON, "error": "late"})])
    status = WorkerStatus.objects.get()
    assert (status.polled_at, status.error, status.kv) == (NOON, "late", {"state": "live"})


@pytest.mark.parametrize("others", [0, 300])
def test_a_batch_asks_for_its_own_rows_however_large_the_fleet(others):
    ROWS.upsert([(key(f"p/other{number}"), {"polls_ok": 1}) for number in range(others)])
    with CaptureQueriesContext(connection) as asked:
        add(WORKER_TABLE, [Contribution(NOON.timestamp(), ("p/w1",), {"polls_ok": 1})], now_s=NOON.timestamp())
    assert len([query for query in asked if "advisory" not in query["sql"]]) == 4
    assert WorkerRollup.objects.filter(worker="p/w1").count() == 3


def test_a_row_keeps_the_dicts_of_others_apart():
    """The rows of two widths begin with the same counts and grow by themselves."""
    dims = ("t", "t/n", "p", "p/w1", "m", "")
    for at_s in (0, 10):
        add(
            REQUEST_TABLE,
            [Contribution(NOON.timestamp() + at_s, dims, {"requests": 1, "ttft_hit": {"5": 1}}) for _ in range(2)],
            now_s=NOON.timestamp() + 60,
        )
    by_width = {
        width_s: list(RequestRollup.objects.filter(width_s=width_s).values_list("ttft_hit", flat=True))
        for width_s in (10, 60, 3600)
    }
    assert by_width == {10: [{"5": 2}, {"5": 2}], 60: [{"5": 4}], 3600: [{"5": 4}]}
    assert set(REQUESTS.how) == set(REQUESTS.values)
