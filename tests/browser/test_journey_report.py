"""Schedule a report, run it, watch its progress, open its PDF."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from tests.browser.installed import Installed

pytestmark = [pytest.mark.browser, pytest.mark.pango, pytest.mark.timeout(240)]
AXE = Path(__file__).parent / "vendor/axe-core-4.14.1/axe.min.js"

SHOWN_WITHIN_S = 20
PROMPT = "The same rules for every caller of this desk. " * 200


def test_a_report_is_scheduled_run_and_its_pdf_opened(browser: Browser, installed: Installed) -> None:
    key = installed.demo_key()
    for number in range(6):
        assert installed.ask(key, f"{PROMPT} Question {number}?").status_code == 200
    with installed.signed_in(browser, "olga") as page:
        _schedule(page)
        page.locator("tr", has_text="Weekly capacity").get_by_role("button", name="Run now").click()
        page.wait_for_url("**/reports/runs/*/**")
        expect(page.locator("#report-run")).to_contain_text("Caching served", timeout=90_000)
        expect(page.locator("#title-state")).to_have_text("Files")
        expect(page.locator(".report-inline svg.report-chart").first).to_be_visible()
        _wait_for_the_delivery(page)
        _has_no_grave_finding(page)
        page.click("button:has-text('Make a link')")
        link = page.locator(".report-link code").inner_text()
        _open_pdf(page)
    _open_link(browser, link)


def _wait_for_the_delivery(page: Page) -> None:
    """This installation has no mail server: the attempt says so."""
    deadline = time.monotonic() + 30
    while "set TIDEMARK_EMAIL_URL" not in page.content():
        assert time.monotonic() < deadline, "nobody tried to tell the reader"
        page.wait_for_timeout(1000)
        page.reload()


def _has_no_grave_finding(page: Page) -> None:
    page.evaluate(AXE.read_text())
    result = page.evaluate("axe.run('main', {resultTypes: ['violations']})")
    assert [row["id"] for row in result["violations"] if row["impact"] in ("serious", "critical")] == []


def _schedule(page: Page) -> None:
    page.goto("/reports/")
    page.get_by_role("link", name="Schedule a report").click()
    page.fill("#field-name", "Weekly capacity")
    page.fill("#field-slug", "weekly")
    page.fill("#field-cron", "30 6 * * 1-5")
    expect(page.locator("#cron-preview")).to_contain_text("06:30")
    expect(page.locator("#cron-preview li")).to_have_count(5)
    page.fill("#field-time_zone", "Europe/Berlin")
    expect(page.locator("#cron-preview")).to_contain_text("Europe/Berlin")
    page.fill("#field-recipients", "capacity@example.com")
    page.fill("#field-gpu_hour_cost", "2.5")
    page.get_by_role("button", name="Schedule it").click()
    expect(page.locator(".alert-success")).to_contain_text("Weekly capacity is scheduled")


def _open_pdf(page: Page) -> None:
    """In the browser's own viewer, as a reader would: ink on a white sheet, and the blue of hits."""
    link = page.get_by_role("link", name="PDF")
    answer = page.request.get(str(link.get_attribute("href")))
    assert answer.ok and answer.headers["content-type"] == "application/pdf" and answer.body().startswith(b"%PDF-1.")
    link.click()
    page.wait_for_url("**/files/pdf/")
    deadline = time.monotonic() + SHOWN_WITHIN_S
    while not _shows_a_report(page.screenshot()):
        assert time.monotonic() < deadline, "the viewer shows no report"
        page.wait_for_timeout(500)


def _shows_a_report(png: bytes) -> bool:
    pixels = Image.open(io.BytesIO(png)).convert("RGB")
    counts = {color: count for count, color in pixels.getcolors(pixels.width * pixels.height) or []}
    paper = counts.get((255, 255, 255), 0) / (pixels.width * pixels.height)
    blue = sum(count for (r, g, b), count in counts.items() if r < 40 and 90 < g < 140 and b > 150)
    ink = sum(count for (r, g, b), count in counts.items() if r < 60 and g < 70 and b < 90)
    return paper > 0.2 and ink > 500 and blue > 50


def _open_link(browser: Browser, link: str) -> None:
    """Without an account; the report's own style sheet is all that its policy lets in."""
    context = browser.new_context(viewport={"width": 1000, "height": 900})
    page = context.new_page()
    refused: list[str] = []
    page.on("console", lambda message: refused.append(message.text) if message.type == "error" else None)
    page.goto(link)
    expect(page.get_by_role("heading", name="Weekly capacity")).to_be_visible()
    assert page.locator(".report-tiles").evaluate("box => getComputedStyle(box).display") == "grid"
    assert [text for text in refused if "favicon" not in text] == []
    context.close()
