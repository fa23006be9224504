"""Rollups: merging equals recomputation, in every width, whatever the batches."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.telemetry.merge import (
    REQUESTS,
    SLICES,
    TOTALS,
    WORKERS,
    Contribution,
    grouped,
    merge_into,
)
from controlplane.telemetry.models import RequestRollup, RequestTotal, SliceRollup, WorkerRollup, WorkerTotal
from controlplane.telemetry.rollups import REQUEST_TABLE, WORKER_TABLE, add

NOON_S = datetime(2026, 5, 17, 12, tzinfo=UTC).timestamp()

counts = st.integers(0, 1000)
labels = st.dictionaries(st.sampled_from(["1", "2", "-150"]), st.integers(1, 9), max_size=3)
requests = st.builds(
    lambda at_s, worker, n, tokens, ttft: Contribution(
        at_s=NOON_S + at_s,
        dims=("t", "t/n", "p", worker, "m", ""),
        values={"requests": n, "hit_tokens": tokens, "ttft_hit": ttft},
    ),
    st.floats(0, 7199),
    st.sampled_from(["p/w1", "p/w2"]),
    counts,
    counts,
    labels,
)


@given(st.lists(requests, max_size=30), st.integers(0, 30))
def test_any_grouping_merges_to_the_same_rows(contributions, cut):
    whole = grouped(REQUESTS, contributions, width_s=60)
    parts = grouped(REQUESTS, contributions[:cut], width_s=60)
    for key, values in grouped(REQUESTS, contributions[cut:], width_s=60).items():
        merge_into(REQUESTS, parts.setdefault(key, {}), values)
    assert parts == whole


@pytest.mark.django_db
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(st.lists(requests, max_size=8), min_size=1, max_size=4))
def test_stored_rows_equal_a_recomputation_in_every_width(batches):
    RequestRollup.objects.all().delete()
    for batch in batches:
        add(REQUEST_TABLE, batch, now_s=NOON_S + 7200)
    everything = [item for batch in batches for item in batch]
    for width_s in (10, 60, 3600):
        stored = {
            (int(row.start.timestamp()), row.worker): (row.requests, row.hit_tokens, row.ttft_hit)
            for row in RequestRollup.objects.filter(width_s=width_s)
        }
        expected = {
            (start, dims[3]): (values["requests"], values["hit_tokens"], values.get("ttft_hit", {}))
            for (start, dims), values in grouped(REQUESTS, everything, width_s=width_s).items()
        }
        assert stored == expected


@pytest.mark.django_db
def test_totals_are_the_sums_over_all_tenants_and_workers():
    def item(tenant: str, worker: str, pool: str, requests: int) -> Contribution:
        return Contribution(NOON_S, (tenant, f"{tenant}/n", pool, worker, "m", "t@1"),
                            {"requests": requests, "ttft_hit": {"4": requests}})  # fmt: skip

    add(REQUEST_TABLE, [item("a", "p/w1", "p", 1), item("b", "p/w2", "p", 2)], now_s=NOON_S)
    add(REQUEST_TABLE, [item("a", "p/w1", "p", 4), item("a", "q/w1", "q", 8)], now_s=NOON_S)
    totals = {row.pool: (row.requests, row.ttft_hit, row.model) for row in RequestTotal.objects.filter(width_s=60)}
    assert totals == {"p": (7, {"4": 7}, "m"), "q": (8, {"4": 8}, "m")}


@pytest.mark.django_db
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(
        st.lists(st.tuples(st.integers(0, 119), st.sampled_from(["p/w1", "p/w2", "q/w1"]), counts), max_size=8),
        min_size=1, max_size=4,
    )
)  # fmt: skip
def test_totals_of_workers_are_the_sums_of_their_own_rates(batches):
    WorkerRollup.objects.all().delete()
    WorkerTotal.objects.all().delete()
    for batch in batches:
        add(
            WORKER_TABLE,
            [
                Contribution(NOON_S + at_s, (worker,), {"kv_samples": 1, "stored_blocks": n})
                for at_s, worker, n in batch
            ],
            now_s=NOON_S + 3600,
        )
    for width_s in (10, 60, 3600):
        expected: dict[tuple[object, str], float] = {}
        for row in WorkerRollup.objects.filter(width_s=width_s):
            key = (row.start, row.worker.split("/")[0])
            expected[key] = expected.get(key, 0.0) + row.stored_blocks * 60 / row.kv_samples
        found = {(row.start, row.pool): row.stored_per_min for row in WorkerTotal.objects.filter(width_s=width_s)}
        assert found == pytest.approx(expected)


@pytest.mark.django_db
def test_polls_and_events_write_one_row_without_harming_each_other():
    dims = ("p/w1",)
    add(WORKER_TABLE, [Contribution(NOON_S, dims, {"polls_ok": 1, "kv_use_max": 0.7, "kv_use_sum": 0.7})], now_s=NOON_S)
    add(WORKER_TABLE, [Contribution(NOON_S, dims, {"stored_blocks": 5, "resident_blocks": 5})], now_s=NOON_S)
    add(WORKER_TABLE, [Contribution(NOON_S, dims, {"polls_ok": 1, "kv_use_max": 0.4, "kv_use_sum": 0.4})], now_s=NOON_S)
    row = WorkerRollup.objects.get(width_s=60)
    assert (row.polls_ok, row.kv_use_max, row.stored_blocks, row.resident_blocks) == (2, 0.7, 5, 5)
    assert row.kv_use_sum == pytest.approx(1.1)


@pytest.mark.django_db
def test_an_unknown_level_replaces_a_known_one():
    for resident in (5, None):
        add(WORKER_TABLE, [Contribution(NOON_S, ("p/w1",), {"resident_blocks": resident})], now_s=NOON_S)
    assert WorkerRollup.objects.get(width_s=10).resident_blocks is None


@pytest.mark.django_db
def test_late_data_is_added_only_to_widths_that_are_still_kept():
    add(WORKER_TABLE, [Contribution(NOON_S, ("p/w1",), {"polls_ok": 1})], now_s=NOON_S + 24 * 3600)
    assert set(WorkerRollup.objects.values_list("width_s", flat=True)) == {60, 3600}


def test_the_shapes_name_every_field_of_their_tables():
    for model, shape in (
        (RequestRollup, REQUESTS),
        (RequestTotal, TOTALS),
        (SliceRollup, SLICES),
        (WorkerRollup, WORKERS),
    ):
        fields = {field.name for field in model._meta.concrete_fields} - {"id", "width_s", "start"}
        assert fields == {*shape.dims, *shape.values}
