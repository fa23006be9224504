"""From an empty installation to the first hit, by clicks alone: pool, worker, tenant, key, request, hit."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.installed import MODEL, Installed, installation_for_browsers
from tests.installation import ROOT, answers, wait_until
from tests.services import free_port

pytestmark = [pytest.mark.browser, pytest.mark.flow, pytest.mark.timeout(240)]

BLOCK_SIZE = 16
LONG_PROMPT = "The quick brown fox jumps over the lazy dog. " * 200


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """Every role, and nothing in them."""
    with installation_for_browsers(tmp_path_factory.mktemp("empty")) as running:
        yield running


@pytest.fixture(scope="module")
def worker_url() -> Iterator[str]:
    """A simulated worker that nobody knows of."""
    port = free_port()
    command = [sys.executable, "-m", "simulator", "worker", "--port", str(port), "--model", MODEL, "--events-port", "0"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: answers(f"{url}/health"), 30, "the worker")
        yield url
    finally:
        process.terminate()
        process.wait(10)


def test_from_nothing_to_the_first_hit(empty: Installed, worker_url: str, browser: Browser, tmp_path: Path) -> None:
    with empty.signed_in(browser) as page:
        page.click("#panel-verdict a:has-text('See what is missing')")
        expect(page.locator("#step-router")).to_have_attribute("data-done", "true")
        expect(page.locator("#step-pool")).to_have_attribute("data-next", "true")
        _make_pool_and_worker(page, worker_url)
        page.goto("/first-run/")
        expect(page.locator("#step-worker")).to_have_attribute("data-done", "true", timeout=60_000)
        page.click("#step-tenant a")
        page.wait_for_url("**/onboarding/**")
        key = _onboard(page)
        expect(page.locator("#panel-first_steps")).to_contain_text("waiting for it …")
        wait_until(lambda: empty.ask(key, LONG_PROMPT).status_code == 200, 10, "the key is served")
        expect(page.locator("#step-request")).to_have_attribute("data-done", "true", timeout=60_000)
        assert empty.ask(key, LONG_PROMPT).status_code == 200
        expect(page.locator("#step-hit")).to_have_attribute("data-done", "true", timeout=60_000)
        expect(page.locator("#step-hit")).to_contain_text("tokens from cache")
        page.goto("/first-run/")
        expect(page.locator("#panel-first_run")).to_contain_text("6 of 6 done")


def _make_pool_and_worker(page: Page, worker_url: str) -> None:
    page.click("#step-pool a:has-text('Make a pool')")
    page.fill("#field-slug", "llama")
    page.fill("#field-models", MODEL)
    page.fill("#field-block_size", str(BLOCK_SIZE))
    page.click("button:has-text('Make the pool')")
    expect(page.locator("h1")).to_have_text("Add a worker")
    page.fill("#field-slug", "w1")
    page.fill("#field-url", worker_url)
    page.click("button:has-text('Add and test')")
    expect(page.locator("h1")).to_have_text("llama/w1")


def _onboard(page: Page) -> str:
    """The key, as it is shown once."""
    page.fill("#field-tenant_id", "umbrella")
    page.fill("#field-tenant_name", "Umbrella")
    page.click("button:has-text('Next')")
    page.fill("#field-slug", "reports")
    page.click("button:has-text('Next')")
    page.fill("#field-ttft_slo_ms", "2000")
    page.click("button:has-text('Next')")
    expect(page.locator("#review")).to_contain_text("umbrella/reports")
    page.click("button:has-text('Make umbrella')")
    expect(page.locator("h1")).to_have_text("umbrella is onboarded")
    key = page.locator("#secret-key").inner_text()
    assert re.fullmatch(r"tm_[0-9a-z]{12}_[A-Za-z0-9_-]{43}", key)
    expect(page.locator("#example-curl")).to_contain_text(key)
    return key
