"""The TTFT audit on a real worker (S9): green with salts, red where a proxy strips them."""

from __future__ import annotations

import pytest

from controlplane.isolation.canary import ENDPOINTS
from controlplane.isolation.canary_run import Subject
from controlplane.isolation.ttft_audit import ENDPOINT, judge_times, run_audit
from tests.isolation.tampering import tampering, without_salt
from tests.vllm.conftest import WORKER_URLS

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(500)]


def verdict_of(url: str) -> str:
    found = run_audit(Subject(url, "tiny", 32), networks=("127.0.0.0/8",), total_s=240, words=600)
    report = judge_times(found)
    medians = (report.own_ms, report.foreign_ms, report.unknown_ms)
    print(f"{report.judgement.verdict}: {report.judgement.reason} Medians of own, foreign, unknown: {medians} ms")
    return report.judgement.verdict


def test_a_worker_that_keeps_salts_apart_is_green() -> None:
    """Its 99 % interval accuses one green worker in two hundred: a leak would repeat itself."""
    assert verdict_of(WORKER_URLS[0]) == "green" or verdict_of(WORKER_URLS[0]) == "green"


def test_a_worker_behind_a_proxy_that_strips_salts_is_red() -> None:
    with tampering(WORKER_URLS[0], {ENDPOINTS[ENDPOINT]: without_salt}) as proxy:
        assert verdict_of(proxy) == "red"
