"""The TTFT audit (S9): judged by intervals, run against simulated workers, asked for over REST."""

from __future__ import annotations

import random
from datetime import timedelta

import httpx
import pytest
from django.utils import timezone

from controlplane.fleet.models import Finding, PoolModel, Worker, WorkerPool
from controlplane.isolation import audit_services
from controlplane.isolation.canary_run import Subject
from controlplane.isolation.models import TtftAudit
from controlplane.isolation.ttft_audit import SAMPLES_MIN, Samples, _Timer, judge_times, run_audit
from tests.fleet.simulated import BLOCK_SIZE, worker
from tests.isolation.test_findings_api import client_of, sam  # noqa: F401 - fixture

NETWORKS = ("127.0.0.0/8",)


def samples(own: float, foreign: float, unknown: float, *, count: int = 50, spread: float = 10.0) -> Samples:
    """Arms with these medians in milliseconds."""
    rng = random.Random(7)
    return Samples(*([rng.gauss(centre, spread) for _ in range(count)] for centre in (own, foreign, unknown)))


@pytest.mark.parametrize(
    ("what", "given", "verdict"),
    [
        ("foreign prompts are misses", samples(30, 200, 200), "green"),
        ("foreign prompts are hits", samples(30, 30, 200), "red"),
        ("foreign prompts are a little faster", samples(30, 180, 200), "red"),
        ("own hits do not stand out", samples(200, 200, 200), "inconclusive"),
        ("own hits stand out barely", samples(195, 200, 200), "inconclusive"),
        ("own hits are slower", samples(250, 200, 200), "inconclusive"),
        ("too few samples", samples(30, 200, 200, count=SAMPLES_MIN - 1), "inconclusive"),
        ("none", Samples(failure="status 500"), "inconclusive"),
    ],
)
def test_it_judges(what: str, given: Samples, verdict: str) -> None:
    assert judge_times(given).judgement.verdict == verdict, what


def test_a_report_holds_what_it_was_judged_by() -> None:
    report = judge_times(samples(30, 200, 200))
    assert report.foreign is not None and report.foreign.low < 0.5 < report.foreign.high < 0.7
    assert report.own is not None and report.own.low > 0.9
    assert report.samples == 50 and 25 < (report.own_ms or 0) < 35


def test_prompts_of_all_arms_are_equal_in_their_words() -> None:
    timer = _Timer(Subject("u", "m", 16), None, "", str, random.Random(1), 300, lambda: 0.0)  # type: ignore[arg-type]
    texts = [timer._text() for _ in range(50)]
    assert len({tuple(sorted(text.split())) for text in texts}) == 1
    assert len({tuple(text.split()[:16]) for text in texts}) == 50


@pytest.mark.real_time
@pytest.mark.parametrize(("ignore_salt", "verdict"), [(False, "green"), (True, "red")])
def test_a_simulated_worker_is_timed(ignore_salt: bool, verdict: str) -> None:
    with worker("--blocks", "4096", events=False) as url:
        httpx.post(f"{url}/sim/faults", json={"ignore_salt": ignore_salt, "slow": 8}).raise_for_status()
        for _ in range(2):  # By its 99 % interval one green in two hundred is not: a leak would repeat itself.
            found = run_audit(Subject(url, "sim", BLOCK_SIZE), networks=NETWORKS, total_s=60, samples=50, words=200)
            report = judge_times(found)
            if report.judgement.verdict == verdict:
                break
    assert report.judgement.verdict == verdict, report
    assert report.own is not None and report.own.low > 0.8


@pytest.mark.parametrize(("url", "why"), [("http://127.0.0.1:9", "0 samples"), ("http://192.0.2.1:80", "0 samples")])
def test_a_worker_that_cannot_be_timed_is_inconclusive(url: str, why: str) -> None:
    report = judge_times(run_audit(Subject(url, "sim", 16), networks=NETWORKS, total_s=5))
    assert report.judgement.verdict == "inconclusive" and why in report.judgement.reason


class TestAskedFor:
    @pytest.fixture
    def known(self, pool: WorkerPool) -> Worker:
        return Worker.objects.get()

    def test_one_at_a_time_until_it_is_lost(self, sam, known: Worker) -> None:  # noqa: F811 - the imported fixture
        answer = sam.post("/api/v1/workers/llama/w1/ttft-audits")
        assert (answer.status_code, answer.json()["verdict"]) == (202, "")
        assert sam.post("/api/v1/workers/llama/w1/ttft-audits").status_code == 409
        row = TtftAudit.objects.get()
        assert audit_services.audits_waiting(now=timezone.now()) == [row.pk]
        TtftAudit.objects.update(requested_at=timezone.now() - timedelta(minutes=11))
        assert audit_services.audits_waiting(now=timezone.now()) == []
        assert sam.post("/api/v1/workers/llama/w1/ttft-audits").status_code == 202

    def test_a_verdict_is_stored_and_a_leak_is_a_finding_until_it_is_green(self, sam, known: Worker) -> None:  # noqa: F811
        for given, verdict, leaks in (
            (samples(30, 30, 200), "red", 1),
            (Samples(failure="x"), "inconclusive", 1),
            (samples(30, 200, 200), "green", 0),
        ):
            TtftAudit.objects.all().delete()
            row = audit_services.request_audit("llama/w1", actor="user:sam")
            audit_services.store_report(row.pk, judge_times(given), at=timezone.now())
            shown = sam.get(f"/api/v1/ttft-audits/{row.pk}").json()
            assert shown["verdict"] == verdict and shown["finished_at"]
            assert Finding.objects.filter(kind="ttft_leaks", resolved_at=None).count() == leaks
        assert shown["auc_low"] < 0.5 < shown["auc_high"] and shown["samples"] == 50
        assert len(sam.get("/api/v1/ttft-audits?worker=llama/w1&verdict=green").json()["items"]) == 1

    def test_an_audit_that_finished_is_not_run_again(self, known: Worker) -> None:
        row = audit_services.request_audit("llama/w1", actor="user:sam")
        audit_services.store_report(row.pk, judge_times(Samples()), at=timezone.now())
        assert audit_services.perform_audit(row.pk) is None

    def test_a_pool_without_model_cannot_be_audited(self, sam, known: Worker) -> None:  # noqa: F811
        PoolModel.objects.all().delete()
        assert sam.post("/api/v1/workers/llama/w1/ttft-audits").status_code == 409
        assert sam.post("/api/v1/workers/llama/w9/ttft-audits").status_code == 404
