"""The simulator's HTML report as a file in a browser: drawn under its own content policy, readable without scripts."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from simulator.fleet.html_report import Verdict, write_html
from simulator.fleet.policies import POLICIES
from tests.browser.conftest import ACT_WITHIN_MS
from tests.browser.test_dashboard import AXE
from tests.simulator.fleet.scenes import row

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("report") / "report.html"
    rows = [
        row(trace=trace, workers=workers, load=load, policy=policy, ttft_p95_s=load * (1 + number))
        for trace in ("weka", "kb8k")
        for workers, load in ((4, 0.3), (4, 0.9), (16, 0.6))
        for number, policy in enumerate(POLICIES)
    ]
    verdicts = [Verdict("mean", "1.1", "≥ 1", True), Verdict("evictions", "0.9", "≤ 0.5", False)]
    write_html(file, rows, title="Goodput", about=["66 runs."], verdicts=verdicts)
    return file


@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 390)])
def test_it_is_drawn_by_itself_and_everyone_can_read_it(browser: Browser, report: Path, theme: str, width: int) -> None:
    context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": 900})
    page = context.new_page()
    page.set_default_timeout(ACT_WITHIN_MS)
    faults: list[str] = []
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(report.as_uri())
    expect(page.locator(".plot[data-drawn]")).to_have_count(7)
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    page.evaluate(AXE.read_text())
    findings = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    assert not [(each["id"], each["nodes"][0]["html"][:160]) for each in findings]
    assert not faults
    context.close()


def test_its_tables_are_there_without_javascript(browser: Browser, report: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    expect(page.get_by_role("table", name="Goodput relative to the oracle's")).to_be_visible()
    expect(page.locator(".plot .main-svg")).to_have_count(0)
    context.close()
