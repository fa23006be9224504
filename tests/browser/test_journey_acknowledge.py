"""A violation rings the bell, is acknowledged in a browser, and the alert ends: the real scheduler decides."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.installed import Installed
from tests.installation import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.flow, pytest.mark.timeout(240)]

TOLD_WITHIN_S = 60
"""Rules are evaluated every 15 s; a loaded machine takes longer."""
A_VIOLATION = """
import time
from django.utils import timezone
from controlplane.telemetry.ingest import apply_entries
from router.contract.telemetry import Shipment, Violation, encode_shipment
violation = Violation(
    at=time.time(), request_id="req-acknowledged", tenant="acme", namespace="acme/support", pool="demo",
    worker="demo/w1", model="sim-llama", prompt_tokens=4096, cached_tokens=2048, bound_tokens=512, evidence="ab" * 16,
)
shipment = Shipment(source="router-test", boot="b", seq=1, at=time.time(), violations=[violation])
result = apply_entries([encode_shipment(shipment)], now=timezone.now()).applied
"""
STATES = "SELECT count(*) FROM alerts_alert WHERE rule_slug = 'isolation-violation' AND state = '{}'"
RESOLVED_BEFORE = STATES.format("resolved")


def test_a_violation_is_acknowledged(installed: Installed, browser: Browser) -> None:
    before = installed.installation.number(RESOLVED_BEFORE)
    assert installed.python(A_VIOLATION) == 1
    wait_until(lambda: installed.installation.number(STATES.format("firing")) == 1, TOLD_WITHIN_S, "the alert fires")
    with installed.signed_in(browser, "sam") as page:
        page.goto("/alerts/")
        expect(page.locator("#panel-alerts")).to_contain_text("critical")
        page.click("#panel-alerts_open a:has-text('Isolation violation')")
        expect(page.locator("main")).to_contain_text("rotate the namespace's salt")
        page.click("a:has-text('Review violations')")
        row = page.locator("#violations tr", has_text="req-acknowledged")
        expect(row).to_contain_text("acme/support")
        row.get_by_label("Reason").fill("A shipment of the test.")
        row.get_by_role("button", name="Acknowledge").click()
        expect(page.locator(".alert-success")).to_contain_text("is acknowledged")
        page.goto("/audit/?action=violation.acknowledge")
        expect(page.locator("#entries")).to_contain_text("A shipment of the test.")
        wait_until(lambda: installed.installation.number(RESOLVED_BEFORE) > before, TOLD_WITHIN_S, "the alert ends")
        page.goto("/alerts/?only=history")
        expect(page.locator("#alert-history")).to_contain_text("Isolation violation")
