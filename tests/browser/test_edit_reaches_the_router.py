"""A watermark edited in a browser on a whole installation is in force in the router: by push, and by poll alone."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.flow.installation import Installation, wait_until
from tests.services import private_valkey

A_POOL = "create_pool(actor='system:test', slug='p', models=['m'])"
"""A watermark is in the snapshot through the pools it applies to."""

pytestmark = [pytest.mark.browser, pytest.mark.flow, pytest.mark.timeout(240)]


@dataclass
class Edited:
    installation: Installation
    page: Page

    def served_version(self) -> int:
        state = self.installation.get(f"http://127.0.0.1:{self.installation.ports['TIDEMARK_ROUTER_ADMIN_PORT']}/state")
        return int(json.loads(state)["snapshot"]["version"])

    def publish(self, *, high: int) -> float:
        """Save the edit; seconds from the click until the router serves a newer snapshot."""
        before = self.served_version()
        self.page.goto(self.address("/policies/"))
        self.page.fill("#field-high", str(high))
        self.page.fill("#field-low", str(high - 20))
        clicked = time.monotonic()
        self.page.click("button:has-text('Publish watermark of global')", no_wait_after=True)
        while self.served_version() <= before:
            assert time.monotonic() - clicked < 20, "the edit never reached the router"
            time.sleep(0.02)
        return time.monotonic() - clicked

    def sign_in(self) -> None:
        self.page.goto(self.address("/accounts/login/"))
        self.page.fill("#id_login", "admin")
        self.page.fill("#id_password", (self.installation.run_dir / "admin-password").read_text().strip())
        self.page.click("button:has-text('Sign in')")
        self.page.wait_for_selector("main#main[data-page=fleet]")

    def address(self, path: str) -> str:
        return f"http://127.0.0.1:{self.installation.ports['TIDEMARK_WEB_PORT']}{path}"


def _edited(folder: Path, browser: Browser, *, redis_url: str = "") -> Iterator[Edited]:
    installation = Installation(folder)
    try:
        installation.start(environment={"TIDEMARK_REDIS_URL": redis_url} if redis_url else {})
        installation.wait_until_serving()
        installation.django("from controlplane.fleet.services import create_pool\n" + A_POOL)
        page = browser.new_page()
        page.set_default_timeout(20_000)
        edited = Edited(installation, page)
        edited.sign_in()
        yield edited
    finally:
        installation.end()


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Edited]:
    yield from _edited(tmp_path_factory.mktemp("edited"), browser)


def test_an_edit_is_in_force_within_two_seconds(edited: Edited) -> None:
    seconds = [edited.publish(high=high) for high in (80, 84, 88)]
    assert max(seconds) < 2, seconds
    expect(edited.page.locator("#rollout-line")).to_contain_text(re.compile(r"1 of 1 routers on v\d+"))


def test_an_invalid_edit_shows_the_fields_error_and_publishes_nothing(edited: Edited) -> None:
    before = edited.served_version()
    edited.page.goto(edited.address("/policies/"))
    edited.page.fill("#field-low", "95")
    edited.page.click("button:has-text('Publish watermark of global')")
    expect(edited.page.locator(".field-error")).to_have_text("Low must be below high.")
    time.sleep(2.5)  # two polls of the router
    assert edited.served_version() == before


def test_with_valkey_stopped_an_edit_is_in_force_within_five_seconds(tmp_path: Path, browser: Browser) -> None:
    valkey_folder = tmp_path / "valkey"
    valkey_folder.mkdir()
    with private_valkey(valkey_folder) as redis_url:
        run = _edited(tmp_path, browser, redis_url=redis_url)
        edited = next(run)
    try:
        wait_until(lambda: "valkey_is_down" in edited.installation.log(), 15, "the router sees that Valkey is away")
        seconds = [edited.publish(high=high) for high in (79, 83)]
        assert max(seconds) < 5, seconds
        expect(edited.page.locator("#rollout-line")).to_contain_text(re.compile(r"1 of 1 routers on v\d+"))
    finally:
        run.close()
