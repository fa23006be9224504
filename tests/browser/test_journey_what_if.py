"""Requests pass the router and are recorded; an operator asks what if, watches it, reads the table, saves it as CSV."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.installed import Installed

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
AXE = Path(__file__).parent / "vendor/axe-core-4.14.1/axe.min.js"
RULES = "The same rules for every caller of this desk. " * 120
SESSIONS, TURNS = 8, 3
RECORDED_WITHIN_S = 60
ANSWERED_WITHIN_MS = 120_000


def test_an_operator_asks_what_if(browser: Browser, installed: Installed) -> None:
    key = installed.demo_key()
    for session in range(SESSIONS):
        for turn in range(TURNS):
            assert installed.ask(key, f"{RULES} Caller {session}. " + "And then? " * 80 * turn).status_code == 200
    with installed.signed_in(browser, "olga") as page:
        _wait_for_the_recording(page)
        page.get_by_role("link", name="Ask what if").click()
        page.fill("#field-fewer_workers", "2")
        page.select_option("#field-policy", "round_robin")
        page.fill("#field-gpu_price_per_h", "2.5")
        page.get_by_role("button", name="Simulate it").click()
        page.wait_for_url(re.compile(r"/what-if/\d+/"))
        expect(page.locator("#title-answer")).to_be_visible(timeout=ANSWERED_WITHIN_MS)
        table = page.locator(".what-if-table")
        for words in ("Measured", "As it is", "1 more worker", "2 fewer workers", "Round robin", "Load × 1.3", "EUR"):
            expect(table).to_contain_text(words)
        expect(page.locator(".what-if-said")).to_contain_text(re.compile(r"Simulated [\d.]+ % hits, measured [\d.]+ %"))
        expect(page.locator("#chart-what-if-hits .main-svg").first).to_be_visible()
        _has_no_grave_finding(page)
        with page.expect_download() as saved:
            page.get_by_role("link", name="Scenarios as CSV").click()
        lines = Path(saved.value.path()).read_text().splitlines()
        assert lines[0] == "scenario,figure,mean,low,high"
        assert any(line.startswith("round robin,hit_token_share,0.") for line in lines)


def _wait_for_the_recording(page: Page) -> None:
    deadline = time.monotonic() + RECORDED_WITHIN_S
    page.goto("/what-if/")
    while True:
        found = re.search(r"(\d+) recorded request", page.locator(".page-head").inner_text())
        if found and int(found[1]) >= SESSIONS * TURNS:
            return
        assert time.monotonic() < deadline, "routers told of no recorded request"
        page.wait_for_timeout(1000)
        page.reload()


def _has_no_grave_finding(page: Page) -> None:
    page.evaluate(AXE.read_text())
    result = page.evaluate("axe.run('main', {resultTypes: ['violations']})")
    assert [row["id"] for row in result["violations"] if row["impact"] in ("serious", "critical")] == []
