"""A policy is tried on recorded decisions, rolled out in stages to the real router, and rolled back, in a browser."""

from __future__ import annotations

import contextlib
import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.installed import Installed
from tests.installation import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.flow, pytest.mark.timeout(240)]


STAGES = ("10.0 %", "50.0 %", "100.0 %")


def _in_force(installed: Installed) -> list[str]:
    """Variants that the router has in force."""
    return list(installed.state()["snapshot"]["variants"])


def _advance_until_in_force(installed: Installed, page: Page) -> None:
    """The one router is in the last stage at the latest; each stage is given the time of a publication."""
    share = page.locator("#panel-rollout_one [aria-current=step]")
    for following in STAGES[1:]:
        with contextlib.suppress(AssertionError):
            return wait_until(lambda: bool(_in_force(installed)), 4, "the router is in this stage")
        page.click("button:has-text('Go to the next stage now')")
        expect(share).to_contain_text(following)


def test_a_policy_is_tried_rolled_out_and_rolled_back(installed: Installed, browser: Browser) -> None:
    with installed.signed_in(browser, "olga") as page:
        page.goto("/policies/pool/demo/")
        page.fill("#field-high", "55")
        page.fill("#field-low", "35")
        page.click("button:has-text('Try on recorded decisions')")
        expect(page.locator("#dry-run")).to_contain_text(re.compile("sampled decisions would go|could be judged"))
        expect(page.locator("#field-high")).to_have_value("55")
        page.fill("#field-reason", "less churn")
        page.click("button:has-text('Roll out in stages')")
        page.wait_for_url("**/policies/rollouts/*/**")
        progress = page.locator("#panel-rollout_one")
        expect(progress).to_contain_text("55.0 %")
        expect(progress.locator(".stages li")).to_have_count(3)
        expect(progress.locator("[aria-current=step]")).to_contain_text("10.0 %")
        _advance_until_in_force(installed, page)
        wait_until(lambda: bool(_in_force(installed)), 10, "the router has the candidate in force")
        routers = progress.locator("dt:has-text('Routers with it') + dd")
        expect(routers).not_to_have_text("none yet")
        page.fill("#reason", "changed our mind")
        page.click("button:has-text('Roll back on all routers')")
        expect(page.locator(".alert-success")).to_contain_text("rolled back")
        expect(progress).to_contain_text("olga")
        expect(page.locator("button:has-text('Roll back on all routers')")).to_have_count(0)
        wait_until(lambda: not _in_force(installed), 10, "the router is back on what held before")
        page.click("h1 a:has-text('revision')")
        expect(page.locator("h1")).to_contain_text("Watermark of pool:demo, revision")
        expect(page.locator("#revision-diff")).to_contain_text("55.0 %")
        page.goto("/policies/pool/demo/")
        expect(page.locator("#policy-history")).to_contain_text("candidate")
        expect(page.locator("#panel-rollouts")).to_contain_text("rolled back")
