"""A watermark edited in a browser on a whole installation is in force in the router: by push, and by poll alone."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.installed import Installed, installation_for_browsers
from tests.installation import wait_until
from tests.services import private_valkey

A_POOL = "create_pool(actor='system:test', slug='p', models=['m'])"
"""A watermark is in the snapshot through the pools it applies to."""

pytestmark = [pytest.mark.browser, pytest.mark.flow, pytest.mark.timeout(240)]


@dataclass
class Edited:
    installed: Installed
    page: Page

    def publish(self, *, high: int) -> float:
        """Save the edit; seconds from the click until the router serves a newer snapshot."""
        before = self.installed.served_version()
        self.page.goto("/policies/")
        self.page.fill("#field-high", str(high))
        self.page.fill("#field-low", str(high - 20))
        clicked = time.monotonic()
        self.page.click("button:has-text('Publish watermark of global')", no_wait_after=True)
        while self.installed.served_version() <= before:
            assert time.monotonic() - clicked < 20, "the edit never reached the router"
            time.sleep(0.02)
        seconds = time.monotonic() - clicked
        expect(self.page.locator(".alert-success")).to_be_visible()
        return seconds


@contextlib.contextmanager
def _edited(folder: Path, browser: Browser, *, redis_url: str = "") -> Iterator[Edited]:
    environment = {"TIDEMARK_REDIS_URL": redis_url} if redis_url else {}
    with installation_for_browsers(folder, environment=environment) as installed:
        installed.python("from controlplane.fleet.services import create_pool\n" + A_POOL)
        # Without Valkey the page polls, and the browser notes each attempt at a websocket.
        with installed.signed_in(browser, strict=not redis_url) as page:
            yield Edited(installed, page)


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Edited]:
    with _edited(tmp_path_factory.mktemp("edited"), browser) as opened:
        yield opened


def test_an_edit_is_in_force_within_two_seconds(edited: Edited) -> None:
    seconds = [edited.publish(high=high) for high in (80, 84, 88)]
    assert max(seconds) < 2, seconds
    expect(edited.page.locator("#rollout-line")).to_contain_text(re.compile(r"1 of 1 routers on v\d+"))


def test_an_invalid_edit_shows_the_fields_error_and_publishes_nothing(edited: Edited) -> None:
    before = edited.installed.served_version()
    edited.page.goto("/policies/")
    edited.page.fill("#field-low", "95")
    edited.page.click("button:has-text('Publish watermark of global')")
    expect(edited.page.locator(".field-error")).to_have_text("Low must be below high.")
    time.sleep(2.5)  # two polls of the router
    assert edited.installed.served_version() == before


def test_with_valkey_stopped_an_edit_is_in_force_within_five_seconds(tmp_path: Path, browser: Browser) -> None:
    valkey_folder = tmp_path / "valkey"
    valkey_folder.mkdir()
    with contextlib.ExitStack() as opened:
        with private_valkey(valkey_folder) as redis_url:
            edited = opened.enter_context(_edited(tmp_path, browser, redis_url=redis_url))
        log = edited.installed.installation.log
        wait_until(lambda: "valkey_is_down" in log(), 15, "the router sees that Valkey is away")
        seconds = [edited.publish(high=high) for high in (79, 83)]
        assert max(seconds) < 5, seconds
        expect(edited.page.locator("#rollout-line")).to_contain_text(re.compile(r"1 of 1 routers on v\d+"))
