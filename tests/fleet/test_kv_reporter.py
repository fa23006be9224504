"""What a second of KV events is reported as."""

from __future__ import annotations

from controlplane.fleet.kv_events.reporter import SILENT_AFTER_S, SILENT_TOKENS_MIN, Activity, Reporter
from controlplane.fleet.kv_events.tracker import CacheTracker
from tests.fleet.test_kv_tracker import Worker, followed, removed, stored


def reporter(*, computed: float | None = 0.0) -> Reporter:
    found = Reporter("p/w1")
    found.note_activity(Activity(computed_tokens=computed, capacity_blocks=64), at=0.0)
    return found


def test_evictions_are_a_mean_over_ten_seconds():
    worker = Worker()
    tracker, report = followed(worker), reporter()
    for block in range(20):
        tracker.live(*worker.publish(stored(block)))
    for _ in range(10):
        report.report(tracker, at=1.0, connected=True)
    tracker.live(*worker.publish(removed(*range(20))))
    row, live = report.report(tracker, at=2.0, connected=True)
    assert (row.removed_blocks, live.evictions_per_s) == (20, 2.0)
    assert (live.resident_blocks, live.capacity_blocks) == (0, 64)


def test_without_a_connection_nothing_is_known():
    row, live = reporter().report(followed(Worker()), at=1.0, connected=False)
    assert (row.state, row.resident_blocks) == ("down", None)
    assert (live.resident_blocks, live.evictions_per_s, live.cache_epoch_at) == (None, None, None)


def test_a_worker_that_computes_without_events_is_silent():
    report, tracker = reporter(), followed(Worker())
    report.heard(at=100.0)
    report.note_activity(Activity(5_000.0), at=104.0)
    assert report.report(tracker, at=200.0, connected=True)[0].state == "live"
    report.note_activity(Activity(5_000.0 + SILENT_TOKENS_MIN), at=200.0)
    row, live = report.report(tracker, at=200.0, connected=True)
    assert (row.state, row.resident_blocks, live.cache_epoch_at) == ("silent", None, None)
    report.heard(at=201.0)
    assert report.report(tracker, at=202.0, connected=True)[0].state == "live"


def test_figures_polled_shortly_after_an_event_do_not_count_as_silence():
    report, tracker = reporter(), followed(Worker())
    report.heard(at=100.0)
    report.note_activity(Activity(50_000.0), at=100.0 + SILENT_AFTER_S)
    assert report.report(tracker, at=500.0, connected=True)[0].state == "live"


def test_a_restarted_workers_counter_is_a_base_of_its_own():
    report, tracker = reporter(computed=90_000.0), followed(Worker())
    report.note_activity(Activity(10.0), at=50.0)
    assert report.report(tracker, at=60.0, connected=True)[0].state == "live"


def test_unknown_activity_is_no_silence():
    report = reporter(computed=None)
    assert report.report(followed(Worker()), at=500.0, connected=True)[0].state == "live"


def test_a_count_that_is_not_exact_is_not_reported():
    tracker = CacheTracker()
    tracker.unanswered(tracker.begin())
    row, live = reporter().report(tracker, at=1.0, connected=True)
    assert (row.state, row.resident_blocks, live.cache_epoch_at) == ("degraded", None, None)
