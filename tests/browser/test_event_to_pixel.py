"""From an event on a worker to the browser: worker → subscriber → stream → ingestion → push → page."""

from __future__ import annotations

import math
import time
import uuid

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import wait_for_updates
from tests.browser.installed import Installed

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

EVENTS = 24
P95_S_MAX = 3.0
"""The promise. A second at most until the worker's events are shipped, half of one until they are ingested, one until
the push, and what each takes."""
BLOCKS_OF_TEXT = 600
"""Words: dozens of blocks, so that the cache of whichever worker answers changes."""


def test_it_is_seen_within_seconds(browser: Browser, installed: Installed) -> None:
    lags_s = sorted(event_lags_s(browser, installed, EVENTS))
    assert lags_s[math.ceil(0.95 * EVENTS) - 1] <= P95_S_MAX, lags_s


def test_the_page_says_how_old_its_figures_are(browser: Browser, installed: Installed) -> None:
    with installed.signed_in(browser, "admin") as page:
        page.goto("/workers/")
        expect(page.locator("#panel-workers .age-text")).to_contain_text("s old")


def event_lags_s(browser: Browser, installed: Installed, events: int) -> list[float]:
    """Seconds from an answer, whose prompt's blocks the worker has just stored, to their number on the page."""
    key = installed.demo_key()
    with installed.signed_in(browser, "admin") as page:
        page.goto("/workers/")
        expect(page.locator("#live-state")).to_contain_text("live")
        wait_for_updates(page, 2, within_s=60)  # an installation that has just started ingests nothing for some seconds
        return [_lag_s(page, installed, key) for _ in range(events)]


def _lag_s(page: Page, installed: Installed, key: str) -> float:
    before = _blocks(page)
    prompt = f"{uuid.uuid4()} " + " ".join(f"word{number}" for number in range(BLOCKS_OF_TEXT))
    assert installed.ask(key, prompt, tokens=1).status_code == 200
    answered_s = time.monotonic()
    while _blocks(page) == before:
        assert time.monotonic() < answered_s + 20, "the page never showed the event"
        page.wait_for_timeout(30)
    return time.monotonic() - answered_s


def _blocks(page: Page) -> list[str | None]:
    """`<n> of <capacity> blocks` of each worker."""
    return [cell.get_attribute("title") for cell in page.locator("#panel-workers td[title$=' blocks']").all()]
