"""Recorded traffic: from a shipment to a file that the simulator reads; each tenant's own; bounded by age and size."""

from __future__ import annotations

import gzip
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from controlplane.telemetry import recorded
from controlplane.telemetry.ingest import Applied, apply_entries
from controlplane.telemetry.models import RecordedChunk
from controlplane.telemetry.tasks import expire_rollups
from controlplane.telemetry.windows import Scope
from router.contract.recorded import ANCHOR_BYTES, RecordedRequest
from router.contract.telemetry import PrefixBreaks
from simulator.fleet.recorded_file import load
from tests.telemetry.shipments import shipment

pytestmark = pytest.mark.django_db
_seq = iter(range(10**6))


def _request(at: datetime, tenant: str = "acme", **values: Any) -> RecordedRequest:
    given: dict[str, Any] = {
        "tenant": tenant, "namespace": f"{tenant}/chat", "prompt_tokens": 900,
        "output_tokens": 20, "cached_tokens": 512, "ttft_ms": 80.0, "text_bytes": 3600,
        "anchors": bytes(range(7 * ANCHOR_BYTES)), "unit": bytes(ANCHOR_BYTES), "head_blocks": 2, "share": 0.5,
    }  # fmt: skip
    return RecordedRequest(at=at.timestamp(), pool="p", model="llama", worker="p/w1", **(given | values))


def _tell(at: datetime, *requests: RecordedRequest, now: datetime | None = None, **parts: Any) -> Applied:
    entry = shipment(next(_seq), at.timestamp(), recorded=list(requests), **parts)
    return apply_entries([entry], now=now or at)


def _scope(at: datetime, **values: str) -> Scope:
    return Scope(from_=at - timedelta(hours=1), to=at + timedelta(seconds=1), **values)


def test_a_file_holds_what_was_shipped_by_time_and_the_simulator_reads_it(tmp_path: Path) -> None:
    now = timezone.now()
    later, earlier = _request(now), _request(now - timedelta(seconds=5), cached_tokens=None)
    _tell(now, later, earlier, recorded_dropped=3)
    path = tmp_path / "recorded.jsonl.gz"
    assert recorded.write_recorded(_scope(now), path) == 2
    read = load(f"recorded:{path}")
    assert read.requests == [earlier, later]
    assert (read.head.routers, read.head.dropped, read.head.since) == (1, 3, earlier.at)
    assert gzip.decompress(path.read_bytes()).count(b"\n") == 3


def test_a_tenants_file_holds_nothing_of_another(tmp_path: Path) -> None:
    now = timezone.now()
    _tell(now, _request(now), _request(now, "globex"), _request(now, "globex", namespace="globex/desk"))
    path = tmp_path / "recorded.jsonl"
    assert recorded.write_recorded(_scope(now, tenant="globex"), path) == 2
    assert {request.tenant for request in load(str(path)).requests} == {"globex"} and b"acme" not in path.read_bytes()
    assert recorded.write_recorded(_scope(now, namespace="globex/desk"), path) == 1
    assert recorded.recorded_extent(_scope(now, tenant="acme")).requests == 1
    assert recorded.recorded_extent(_scope(now, pool="other")).requests == 0


def test_the_newest_are_taken_where_there_are_more_than_asked_for(tmp_path: Path) -> None:
    now = timezone.now()
    for age_s in range(6):
        at = now - timedelta(seconds=age_s)
        _tell(at, _request(at, output_tokens=age_s))
    path = tmp_path / "recorded.jsonl"
    assert recorded.write_recorded(_scope(now), path, limit=4) == 4
    assert [request.output_tokens for request in load(str(path)).requests] == [3, 2, 1, 0]
    assert recorded.write_recorded(_scope(now - timedelta(days=1)), tmp_path / "none") == 0
    assert not (tmp_path / "none").exists()


def test_the_files_head_names_the_change_that_costs_a_namespace_most(tmp_path: Path) -> None:
    now = timezone.now()
    breaks = [
        PrefixBreaks("acme/chat", "p", "desk@1", prompts=20),
        PrefixBreaks("acme/chat", "p", "desk@1", "clock", 96, 12, 48_000),
        PrefixBreaks("acme/chat", "p", "desk@1", "uuid", 200, 2, 1_000),
        PrefixBreaks("globex/chat", "p", "", "clock", 10, 2, 1_000),
    ]
    _tell(now, _request(now), breaks=breaks)
    path = tmp_path / "recorded.jsonl"
    recorded.write_recorded(_scope(now, tenant="acme"), path)
    (row,) = load(str(path)).head.broken
    assert (row.namespace, row.template, row.position_bytes, row.lost_bytes) == ("acme/chat", "desk@1", 96, 4_000)


@pytest.mark.parametrize(
    "wrong",
    [{"prompt_tokens": 0}, {"share": 0.0}, {"anchors": b"1234567"}, {"unit": b"1"}, {"cached_tokens": -1}],
)
def test_a_shipment_with_an_impossible_request_is_refused_whole(wrong: dict[str, Any]) -> None:
    now = timezone.now()
    assert _tell(now, _request(now), _request(now, **wrong)).refused
    assert not RecordedChunk.objects.exists()


def test_what_is_old_goes_and_then_the_oldest_beyond_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    now = timezone.now()
    ages = [timedelta(days=3), timedelta(hours=30), timedelta(hours=2), timedelta(0)]
    for age in ages:
        _tell(now - age, _request(now - age), now=now - age)
    expire_rollups()
    assert RecordedChunk.objects.count() == 3, "the one of three days ago is gone"
    sizes = list(RecordedChunk.objects.order_by("-start").values_list("size_bytes", flat=True))
    monkeypatch.setattr(recorded, "BYTES_MAX", sum(sizes[:2]))
    expire_rollups()
    assert list(RecordedChunk.objects.order_by("-start").values_list("size_bytes", flat=True)) == sizes[:2]


def test_the_command_exports_a_file_or_says_that_there_is_nothing(tmp_path: Path) -> None:
    now = timezone.now()
    _tell(now, _request(now), _request(now, "globex"))
    path = tmp_path / "recorded.jsonl.gz"
    call_command("recorded", "export", str(path), "--tenant", "globex", verbosity=0)
    assert [request.tenant for request in load(str(path)).requests] == ["globex"]
    for early in ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00"):
        call_command("recorded", "export", str(path), "--tenant", "globex", "--since", early, verbosity=0)
        assert len(load(str(path)).requests) == 1
    for wrong in (["--pool", "none"], ["--since", "yesterday"], ["--limit", "0"]):
        with pytest.raises(CommandError):
            call_command("recorded", "export", str(path), *wrong)
