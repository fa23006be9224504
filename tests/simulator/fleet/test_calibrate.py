"""Calibration: what two scrapes or a report tell of a worker becomes a profile, and what they do not is said."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from simulator.__main__ import main
from simulator.engine import Engine, EngineLimits, Sequence
from simulator.fleet.calibrate_metrics import MetricsError, Page, interval, read_page
from simulator.fleet.calibrated_profile import profile_of, read_profile
from simulator.fleet.calibration import PrefillPoint, fit_prefill
from simulator.fleet.hardware import H100_32B, H200_8B
from simulator.metrics import WorkerMetrics

STEP_S, BATCH_TOKENS = 0.02, 2_048


def took_s(new_tokens: int, context_tokens: int) -> float:
    profile = dataclasses.replace(H100_32B, decode_base_s=STEP_S, max_num_batched_tokens=BATCH_TOKENS)
    return 0.03 + profile.prefill_alone_s(new_tokens, context_tokens=context_tokens)


def points(*lengths: tuple[int, int]) -> list[PrefillPoint]:
    return [PrefillPoint(new, context, took_s(new, context)) for new, context in lengths]


def test_it_finds_the_terms_that_the_times_were_made_of() -> None:
    asked = points((1_000, 0), (3_000, 0), (6_000, 0), (11_000, 0), (2_000, 9_000), (500, 5_000))
    fit = fit_prefill(asked, step_s=STEP_S, batch_tokens=BATCH_TOKENS)
    assert fit is not None and fit.points == 6 and fit.error < 1e-6
    assert fit.tokens_per_s == pytest.approx(H100_32B.prefill_tokens_per_s)
    assert fit.attention_doubling_tokens == pytest.approx(H100_32B.attention_doubling_tokens, rel=1e-3)
    assert fit.overhead_s == pytest.approx(0.03)


def test_one_slow_repeat_of_three_moves_nothing() -> None:
    asked = points((1_000, 0), (3_000, 0), (6_000, 0), (11_000, 0), (2_000, 9_000)) * 3
    stalled = [dataclasses.replace(asked[0], seconds=60.0), *asked[1:]]
    fit = fit_prefill(stalled, step_s=STEP_S, batch_tokens=BATCH_TOKENS)
    assert fit is not None and fit.tokens_per_s == pytest.approx(H100_32B.prefill_tokens_per_s)


def test_few_lengths_make_a_plain_rate_and_none_makes_nothing() -> None:
    fit = fit_prefill(points((1_000, 0)), step_s=STEP_S, batch_tokens=BATCH_TOKENS)
    assert fit is not None and fit.overhead_s == 0 and fit.seconds(1_000, 0) == pytest.approx(took_s(1_000, 0) - STEP_S)
    assert fit_prefill([], step_s=STEP_S, batch_tokens=BATCH_TOKENS) is None
    assert fit_prefill([PrefillPoint(10, 0, 0.01)], step_s=STEP_S, batch_tokens=BATCH_TOKENS) is None


class Worker:
    """A simulated worker on a clock of its own, with its metrics page."""

    def __init__(self) -> None:
        self.engine = Engine(EngineLimits(blocks=2_001, max_num_batched_tokens=BATCH_TOKENS))
        self.metrics = WorkerMetrics(engine=self.engine, model="sim-llama", hash_algorithm="sha256")
        self.now = 0.0

    def serve(self, first_token: int, prompt_tokens: int, *, answer_tokens: int = 20) -> None:
        """One request, alone, of a prompt that nobody asked before."""
        prompt = [first_token] * prompt_tokens
        self.engine.add(Sequence("", prompt, prompt_tokens, answer_tokens, None, self.now))
        while (step := self.engine.begin_step(self.now)) is not None:
            self.now += step.duration_s
            for sequence in step.admitted:
                self.metrics.observe_admission(sequence)
            for output in self.engine.finish_step(step, self.now):
                self.metrics.observe_token(output)
            self.metrics.observe_step(step, self.engine.cache.take_times())

    def page(self) -> str:
        return self.metrics.page().decode()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Before and behind eight lone requests."""
    folder, worker = tmp_path_factory.mktemp("pages"), Worker()
    worker.serve(99, 500)
    files = [folder / "before", folder / "after"]
    files[0].write_text(worker.page())
    for number in range(8):
        worker.serve(100 + number, 4_000)
    files[1].write_text(worker.page())
    return files


def test_two_scrapes_make_the_profile_that_the_worker_has(pages: list[Path], tmp_path: Path, capsys) -> None:
    out = tmp_path / "profile.json"
    flags = ["--like", "h100-32b", "--batch-tokens", str(BATCH_TOKENS), "--out", str(out)]
    assert main(["calibrate", "--metrics", *map(str, pages), *flags]) == 0
    file = read_profile(out)
    assert file.profile.prefill_tokens_per_s == pytest.approx(H100_32B.prefill_tokens_per_s, rel=0.02)
    assert file.profile.decode_base_s == pytest.approx(H100_32B.decode_base_s, rel=0.02)
    assert file.profile.kv_capacity_tokens == 2_000 * 16
    assert file.profile.max_num_batched_tokens == BATCH_TOKENS
    assert "attention_doubling_tokens" not in file.measured and file.like == "h100-32b"
    assert "attention_doubling_tokens              49,000  assumed" in capsys.readouterr().out


def test_a_fleet_runs_with_a_profile_from_a_file(pages: list[Path], tmp_path: Path, capsys) -> None:
    out, table = tmp_path / "profile.json", tmp_path / "table.json"
    assert main(["calibrate", "--metrics", *map(str, pages), "--out", str(out)]) == 0
    flags = ["--trace", "toolagent", "--workers", "2", "--load", "0.5", "--seeds", "1", "--requests", "40"]
    assert main(["fleet", *flags, "--policies", "round_robin", "--profile", str(out), "--json", str(table)]) == 0
    assert json.loads(table.read_text())["runs"][0]["profile"] == f"file:{out}"
    assert profile_of(f"file:{out}") == read_profile(out).profile


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ((0, 0), "0 requests ended between the scrapes"),
        ((1, 0), "went backwards"),
    ],
)
def test_an_interval_that_holds_nothing_is_unknown(
    pages: list[Path], order: tuple[int, int], said: str, capsys
) -> None:
    assert main(["calibrate", "--metrics", *(str(pages[index]) for index in order)]) == 1
    assert "unknown" in (shown := capsys.readouterr().err) and said in shown


def test_a_worker_that_started_anew_is_unknown_though_its_counters_grew(pages: list[Path]) -> None:
    before, after = (read_page(page.read_text()) for page in pages)
    with pytest.raises(MetricsError, match="the process started anew"):
        interval(before, dataclasses.replace(after, started_at=(before.started_at or 0) + 60))


def test_what_a_page_does_not_hold_is_none(pages: list[Path]) -> None:
    before, after = (read_page(page.read_text()) for page in pages)
    silent = Page(
        {name: value for name, value in after.sums.items() if "inter_token" not in name}, {}, after.started_at
    )
    found = interval(before=Page({}, {}, before.started_at), after=silent)
    assert (found.step_s, found.kv_capacity_tokens) == (None, None)
    assert [note.rsplit(": ", 1)[1] for note in found.notes] == ["decode time unknown", "KV capacity unknown"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no series of vLLM is on the page"),
        ("up 1\nvllm:other 3\n", "no series of vLLM is on the page"),
    ],
)
def test_a_page_without_series_says_so(tmp_path: Path, content: str, said: str, capsys) -> None:
    page = tmp_path / "page"
    page.write_text(content)
    assert main(["calibrate", "--metrics", str(page), str(page)]) == 1
    assert said in capsys.readouterr().err


def test_a_report_gives_the_rate_that_routers_calibrated(tmp_path: Path, capsys) -> None:
    what_if = {"pool": "p1", "question": {"kv_capacity_tokens": 500_000}}
    report, out = tmp_path / "report.json", tmp_path / "profile.json"
    report.write_text(json.dumps({"prefill_tokens_per_s": {"p1": 30_000.0, "p2": 9_000.0}, "what_if": what_if}))
    assert main(["calibrate", "--report", str(report)]) == 1
    assert "name one with --pool: p1, p2" in capsys.readouterr().err
    assert main(["calibrate", "--report", str(report), "--pool", "p1", "--out", str(out)]) == 0
    file = read_profile(out)
    assert (file.profile.prefill_tokens_per_s, file.profile.kv_capacity_tokens) == (30_000.0, 500_000)
    assert file.measured == ["prefill_tokens_per_s", "kv_capacity_tokens"]
    assert main(["calibrate", "--report", str(report), "--pool", "p2", "--out", str(out)]) == 0
    assert read_profile(out).measured == ["prefill_tokens_per_s"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no file is there"),
        ("{", "holds no profile"),
        ("{}", "holds no profile"),
        (json.dumps({"profile": dataclasses.asdict(H200_8B) | {"kv_capacity_tokens": 0}, "measured": [], "like": "x",
                     "source": "metrics"}), "kv_capacity_tokens must be positive"),
    ],
)  # fmt: skip
def test_a_file_without_a_profile_is_refused(tmp_path: Path, content: str | None, said: str, capsys) -> None:
    file = tmp_path / "profile.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SystemExit):
        main(["fleet", "--profile", str(file)])
    assert said in capsys.readouterr().err
