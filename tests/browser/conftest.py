"""A real web server with seeded telemetry that goes on, and a Chromium that looks at it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from tests import services
from tests.browser.installed import installed  # noqa: F401  (a fixture of every journey)
from tests.dashboard.story import PASSWORD

ROOT = Path(__file__).resolve().parents[2]
READY_WITHIN_S = 120
ACT_WITHIN_MS = 60_000
"""Of a click, a navigation, an expectation: generous, for a machine whose cores are shared with the whole run."""
OURS = ("TIDEMARK_", "REDIS_", "DJANGO_")
"""Variables of the test run that the site must not inherit."""
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
             "--disable-sync", "--no-first-run"]  # fmt: skip


expect.set_options(timeout=ACT_WITHIN_MS)


@dataclass
class Site:
    """A running dashboard. `pulse` can be stopped to let its figures age."""

    url: str
    environment: dict[str, str]
    port: int
    web: subprocess.Popen[bytes]
    pulse: subprocess.Popen[bytes]

    def restart_web(self) -> None:
        self.web = _web(self.environment, self.port)

    def stop_web(self) -> None:
        _end(self.web)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with services.private_valkey(folder) as redis_url:
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(OURS)},
            "TIDEMARK_RUN_DIR": str(folder / "run"),
            "TIDEMARK_REDIS_URL": redis_url,
            "TIDEMARK_LOG_LEVEL": "WARNING",
        }  # fmt: skip
        _run([sys.executable, "manage.py", "migrate", "-v0"], environment)
        _run([sys.executable, "-m", "tests.browser.seed"], environment)
        port = services.free_port()
        web = _web(environment, port)
        pulse = subprocess.Popen([sys.executable, "-m", "tests.browser.pulse"], cwd=ROOT, env=environment)
        running = Site(f"http://127.0.0.1:{port}", environment, port, web, pulse)
        try:
            yield running
        finally:
            _end(running.pulse)
            _end(running.web)


@pytest.fixture(scope="module")
def browser(chromium_path: str) -> Iterator[Browser]:
    """Playwright keeps an event loop running in this thread until it ends: tests after the module need theirs."""
    with launched(chromium_path) as opened:
        yield opened


@contextlib.contextmanager
def launched(chromium_path: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium_path, args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Browser, site: Site) -> Iterator[Page]:
    """Signed in as the operator, light, 1440 px; any error on the console fails the test."""
    with signed_in(browser, site, "olga") as (opened, faults):
        yield opened
        assert not faults, faults


@contextlib.contextmanager
def signed_in(
    browser: Browser, site: Site, user: str, *, theme: str = "light", width: int = 1440
) -> Iterator[tuple[Page, list[str]]]:
    context: BrowserContext = browser.new_context(
        color_scheme=theme, viewport={"width": width, "height": 900}, base_url=site.url, timezone_id="UTC"
    )
    opened = context.new_page()
    opened.set_default_timeout(ACT_WITHIN_MS)
    faults: list[str] = []
    opened.goto("/accounts/login/")
    opened.fill("#id_login", user)
    opened.fill("#id_password", PASSWORD)
    opened.click("button:has-text('Sign in')")
    opened.wait_for_selector("main#main[data-page=fleet]")
    opened.wait_for_load_state("load")
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("console", lambda message: faults.append(message.text) if _is_fault(message) else None)
    try:
        yield opened, faults
    finally:
        context.close()


def updates(page: Page) -> int:
    """Pushes and polls shown since the page was loaded."""
    return int(page.locator("#main").get_attribute("data-updates") or 0)


def wait_for_updates(page: Page, more: int, *, within_s: float = 40) -> None:
    """Until `more` further updates were shown. Playwright's own waiting evaluates text, which the pages forbid."""
    wanted = updates(page) + more
    deadline = time.monotonic() + within_s
    while updates(page) < wanted:
        assert time.monotonic() < deadline, f"{updates(page)} of {wanted} updates after {within_s} s"
        page.wait_for_timeout(100)


def settled(page: Page, *charts: str) -> None:
    """Until the page hears keys and pointers, its socket has joined and these charts are drawn."""
    expect(page.locator("#help-open")).to_be_visible()
    expect(page.locator("#live-state")).to_contain_text("live")
    for name in charts:
        expect(page.locator(f"#chart-{name} .main-svg").first).to_be_visible()


def standing_still(page: Page, *charts: str) -> None:
    """Settled, then paused: no push moves or redraws what the pointer is about to touch."""
    settled(page, *charts)
    page.click("#live-toggle")
    expect(page.locator("#live-state")).to_contain_text("paused")


def go_by_keys(page: Page, key: str, address: str) -> None:
    """`g` and a letter. A machine that is busy between the two presses takes them for two: then again, as people do."""
    for _ in range(5):
        page.keyboard.press("g")
        page.keyboard.press(key)
        with contextlib.suppress(PlaywrightTimeout):
            return page.wait_for_url(address, timeout=6_000)
    raise AssertionError(f"g {key} does not lead to {address}: {page.url}")


def _is_fault(message: ConsoleMessage) -> bool:
    """Errors, but for the browser's own note of a form that was refused with 422."""
    return message.type == "error" and "status of 422" not in message.text


def _web(environment: dict[str, str], port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "uvicorn", "controlplane.asgi:application", "--port", str(port), "--no-access-log",
               "--log-level", "warning"]  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    ready = f"http://127.0.0.1:{port}/accounts/login/"
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), urllib.request.urlopen(ready, timeout=5):
            return process
        time.sleep(0.2)
    _end(process)
    raise AssertionError(f"the web server did not answer within {READY_WITHIN_S} s")


def _run(command: list[str], environment: dict[str, str]) -> None:
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=300)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(5)
