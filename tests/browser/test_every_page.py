"""What holds for every page: a strict policy that it keeps to, nothing from elsewhere, reading without a script."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Request, Response, expect

from dashboard.rail import RAIL
from tests.browser.conftest import Site, signed_in
from tests.browser.test_dashboard import PAGES

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

EVERY_PAGE = tuple(dict.fromkeys([*(item.path for item in RAIL), *PAGES]))
"""Those of the rail, and those that the accessibility test walks."""
REFUSED = ("'unsafe-inline'", "'unsafe-eval'", "data:", "blob:", "*", "http:", "https:")
"""None of these may stand among the sources of scripts and styles."""


def test_every_page_keeps_to_a_strict_policy_and_to_its_origin(browser: Browser, site: Site) -> None:
    with signed_in(browser, site, "olga") as (page, faults):
        asked, policies = list[str](), dict[str, str]()
        page.on("request", lambda request: asked.append(_origin(request)))
        page.on("response", lambda response: _note_policy(response, policies))
        for path in EVERY_PAGE:
            page.goto(path)
            page.wait_for_load_state("load")
        broken = [text for text in faults if "status of 404" not in text]
        assert not broken, broken
        assert set(asked) <= {site.url, site.url.replace("http", "ws", 1), "data:", "blob:"}, set(asked)
        assert len(policies) >= len(EVERY_PAGE) - 1
        for address, policy in policies.items():
            for directive in ("script-src", "style-src", "default-src", "object-src", "base-uri", "frame-ancestors"):
                sources = _sources(policy, directive)
                assert sources and not set(sources) & set(REFUSED), (address, directive, sources)


def test_a_script_that_slips_into_a_page_does_not_run(browser: Browser, site: Site) -> None:
    with signed_in(browser, site, "olga") as (page, faults):
        page.goto("/?tenant=%3Cimg%20src%3Dx%20onerror%3Ddocument.title%3D'taken'%3E")
        page.wait_for_load_state("load")
        assert "taken" not in page.title()
        page.evaluate(
            "document.body.insertAdjacentHTML('beforeend', '<img src=nothing onerror=\"document.title = `taken`\">')"
        )
        deadline = time.monotonic() + 20
        while not any("Content Security Policy" in text for text in faults):
            assert time.monotonic() < deadline, "the policy did not speak"
            page.wait_for_timeout(100)
        assert "taken" not in page.title()


def test_every_page_can_be_read_without_a_script(browser: Browser, site: Site) -> None:
    with signed_in(browser, site, "olga") as (page, _):
        state = page.context.storage_state()
    context = browser.new_context(base_url=site.url, java_script_enabled=False, storage_state=state)
    try:
        page = context.new_page()
        for path in EVERY_PAGE:
            page.goto(path)
            expect(page.locator("main h1, main h2, main strong").first).to_be_attached()
            assert page.locator("main").inner_text().strip(), path
            # What only a script can work is not offered.
            for button in ("#theme-toggle", "#help-open", "#live-toggle", "#rail-toggle"):
                expect(page.locator(button)).to_be_hidden()
    finally:
        context.close()


def _origin(request: Request) -> str:
    parts = urlsplit(request.url)
    return f"{parts.scheme}:" if parts.scheme in ("data", "blob") else f"{parts.scheme}://{parts.netloc}"


def _note_policy(response: Response, policies: dict[str, str]) -> None:
    if response.request.resource_type == "document":
        policies[response.url] = response.headers.get("content-security-policy", "")


def _sources(policy: str, directive: str) -> list[str]:
    """Of the directive, or of `default-src`."""
    directives = {words[0]: words[1:] for part in policy.split(";") if (words := part.split())}
    return directives.get(directive) or directives.get("default-src") or []
