"""Revoking a namespace in a browser: its requests are refused by the real router once it has acknowledged."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.installed import Installed
from tests.installation import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.flow, pytest.mark.timeout(240)]

ISSUE = """
from controlplane.namespaces.key_services import issue_key
from controlplane.namespaces.services import create_namespace
create_namespace(actor="system:test", tenant="initech", slug="doomed")
result = issue_key(actor="system:test", namespace="initech/doomed", name="app").text
"""


def test_a_revoked_namespace_is_refused_after_the_acknowledgement(installed: Installed, browser: Browser) -> None:
    key = installed.python(ISSUE)
    wait_until(lambda: installed.ask(key).status_code == 200, 15, "the key is served")
    with installed.signed_in(browser, "sam") as page:
        page.goto("/namespaces/initech/doomed/")
        page.click("a:has-text('Revoke …'):not(:has-text('app'))")
        expect(page.locator(".blast")).to_contain_text("Keys that stop1")
        expect(page.locator(".blast")).to_contain_text("resident until evicted")
        page.fill("#field-reason", "contract ended")
        page.fill("#field-typed", "initech/doom")
        page.click("button:has-text('Revoke initech/doomed')")
        expect(page.locator(".field-error")).to_have_text("Type initech/doomed to confirm.")
        assert installed.ask(key).status_code == 200, "nothing was revoked"
        page.fill("#field-typed", "initech/doomed")
        page.click("button:has-text('Revoke initech/doomed')")
        state = page.locator("#revocation-state")
        expect(state).to_contain_text(
            "unreachable now; resident until evicted: every router refuses it", timeout=15_000
        )
        assert installed.ask(key).status_code == 401
        expect(page.locator("#panel-revocation tbody tr")).to_have_count(1)
        expect(page.locator("#panel-revocation tbody")).to_contain_text("ms")
        page.goto("/namespaces/initech/doomed/")
        expect(page.locator(".page-head")).to_contain_text("Revoked")
        expect(page.locator("#changes")).to_contain_text("contract ended")
    assert installed.ask(installed.demo_key()).status_code == 200, "others go on"
