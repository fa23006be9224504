"""A hot prefix is found in a browser and spread: the real router sends its requests to that many workers."""

from __future__ import annotations

import re
import time
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.installed import Installed
from tests.installation import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.flow, pytest.mark.timeout(240)]

HEAD = "The harbour's tide table is read from left to right, one line a day. " * 120
HOMES = 3
ISSUE = """
from controlplane.namespaces.key_services import issue_key
from controlplane.namespaces.services import create_namespace
create_namespace(actor="system:test", tenant="initech", slug="tides")
result = issue_key(actor="system:test", namespace="initech/tides", name="app").text
"""
SERVED = "select sum(json_extract(value, '$')), key from telemetry_prefixheatrollup, json_each(by_worker) " \
         "where namespace = 'initech/tides' and width_s = 10 and start >= datetime({since:.0f}, 'unixepoch') " \
         "group by key"  # fmt: skip


def _ask(installed: Installed, key: str, count: int, *, first: int) -> None:
    """Turns of different people under one head, one after the other: load alone asks for one home."""
    for number in range(first, first + count):
        assert installed.ask(key, f"{HEAD} When may ship {number} sail?", tokens=1).status_code == 200


def _served(installed: Installed, since: float) -> dict[str, int]:
    """Requests by worker in the buckets of ten seconds that began after `since`."""
    rows = installed.installation.rows(SERVED.format(since=since))
    return {str(worker): int(str(count)) for count, worker in rows}


def _open_prefix(page: Page) -> str:
    page.goto("/hotspots/?tenant=initech&ns=initech/tides")
    link = page.locator("#panel-prefixes tbody a").first
    expect(link).to_be_visible()
    # Rows change places as figures come in: the address is the one that was read.
    address = str(link.get_attribute("href"))
    prefix = urlsplit(address).path.rstrip("/").rpartition("/")[2]
    page.goto(address)
    expect(page.locator("h1")).to_contain_text(prefix)
    return prefix


def _spread(page: Page) -> None:
    spread = page.locator("#spread")
    expect(spread.locator("tbody tr")).to_have_count(3)
    expect(spread).to_contain_text("1 worker served it, the busiest 100.0 % of it")
    page.select_option("#spread-homes", str(HOMES))
    page.fill("#spread-reason", "market day")
    page.click("button:has-text('Spread this prefix')")
    expect(page.locator(".alert-success")).to_contain_text(f"at least {HOMES} workers")
    expect(page.locator("#spread")).to_contain_text(f"initech/tides is spread over at least {HOMES} workers")


def test_a_hot_prefix_is_found_and_spread_and_the_rule_reverted(installed: Installed, browser: Browser) -> None:
    key = installed.python(ISSUE)
    wait_until(lambda: installed.ask(key).status_code == 200, 15, "the key is served")
    began = time.time()
    _ask(installed, key, 12, first=0)
    wait_until(lambda: sum(_served(installed, began - 10).values()) >= 12, 20, "its heat is told")
    with installed.signed_in(browser, "olga") as page:
        before = installed.served_version()
        prefix = _open_prefix(page)
        _spread(page)
        wait_until(lambda: installed.served_version() > before, 15, "the router has the rule")
        spread_at = time.time() // 10 * 10 + 10
        time.sleep(max(0.0, spread_at - time.time()))
        _ask(installed, key, 30, first=100)
        wait_until(lambda: sum(_served(installed, spread_at).values()) >= 30, 20, "its heat is told")
        served = _served(installed, spread_at)
        assert len(served) == HOMES, served
        assert max(served.values()) <= 0.6 * sum(served.values()), served
        page.goto("/hotspots/?tenant=initech")
        rules = page.locator("#panel-placements tbody tr").first
        expect(rules).to_contain_text(prefix)
        expect(rules).to_contain_text("market day")
        rules.locator("a:has-text('Revert')").click()
        page.fill("#field-reason", "market is over")
        page.click("button:has-text('Revert the rule')")
        expect(page.locator(".alert-success")).to_contain_text(f"The rule of prefix {prefix} is reverted")
        expect(page.locator("#panel-placements tbody tr").first).to_contain_text(re.compile("reverted"))
