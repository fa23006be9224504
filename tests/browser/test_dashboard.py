"""What an operator sees and does in a browser."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import (
    Site,
    go_by_keys,
    settled,
    signed_in,
    standing_still,
    updates,
    wait_for_updates,
)

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

AXE = Path(__file__).parent / "vendor/axe-core-4.14.1/axe.min.js"
PAGES = (
    "/",
    "/hits/",
    "/ttft/",
    "/ttft/?only=change",
    "/hotspots/",
    "/hotspots/demo/0000009f3a77c1d2/",
    "/evictions/",
    "/workers/",
    "/workers/demo/w2/",
    "/workers/add/",
    "/workers/demo/w2/state/drain/",
    "/templates/",
    "/policies/revisions/watermark/global/1/",
    "/policies/effective/?pool=demo",
    "/policies/routing/pool/demo/",
    "/workers/demo/w2/remove/",
    "/workers/removal/",
    "/policies/",
    "/isolation/",
    "/requests/",
    "/requests/req-0000000c/",
    "/tenants/",
    "/tenants/acme/",
    "/tenants/acme/settings/",
    "/namespaces/acme/support/",
    "/namespaces/acme/support/settings/",
    "/namespaces/acme/support/keys/add/",
    "/status/acme/",
    "/first-run/",
    "/onboarding/",
    "/revoke/tenant/acme/",
    "/pools/add/",
    "/reports/",
    "/reports/add/",
    "/alerts/",
    "/alerts/?only=history",
    "/alerts/add/",
    "/alerts/rules/ttft-slow/",
    "/checklist/",
    "/audit/",
    "/webhooks/",
    "/nosuch/",
)


def test_it_refuses_a_wrong_password_in_words(browser: Browser, site: Site) -> None:
    context = browser.new_context(base_url=site.url)
    page = context.new_page()
    page.goto("/")
    page.fill("#id_login", "olga")
    page.fill("#id_password", "wrong")
    page.click("button:has-text('Sign in')")
    expect(page.get_by_role("alert")).to_contain_text("not correct")
    context.close()


def test_it_draws_the_five_panels_and_keeps_them_moving(page: Page) -> None:
    for name in ("sources", "ttft", "heat", "churn", "hits"):
        expect(page.locator(f"#chart-{name} .main-svg").first).to_be_visible()
    expect(page.locator("#panel-isolation")).to_contain_text("Answers checked")
    expect(page.locator("#panel-verdict")).to_contain_text("Caching served")
    expect(page.locator("#live-state")).to_contain_text("live")
    figure = page.locator("#chart-ttft").get_attribute("data-figure")
    wait_for_updates(page, 3)
    # A bucket of 10 s is drawn once it is complete.
    expect(page.locator("#chart-ttft")).not_to_have_attribute("data-figure", str(figure), timeout=40_000)
    expect(page.locator("#panel-tiles .fresh")).to_have_text(re.compile(r"^\d+(\.\d)? s old$"))


def test_it_pauses_and_resumes(page: Page) -> None:
    wait_for_updates(page, 1)
    page.click("#live-toggle")
    expect(page.locator("#live-state")).to_contain_text("paused")
    seen = updates(page)
    page.wait_for_timeout(2500)
    assert updates(page) == seen
    page.click("#live-toggle")
    wait_for_updates(page, 1)
    expect(page.locator("#live-state")).to_contain_text("live")


def test_it_polls_while_the_socket_is_away_and_says_so(browser: Browser, site: Site) -> None:
    with signed_in(browser, site, "vera") as (page, _):
        page.route_web_socket("**/ws/live", lambda socket: socket.close())
        page.goto("/")
        expect(page.locator("#live-state")).to_contain_text("polling")
        wait_for_updates(page, 1)


def test_it_says_disconnected_while_the_server_is_away_and_recovers(browser: Browser, site: Site) -> None:
    with signed_in(browser, site, "vera") as (page, _):
        expect(page.locator("#live-state")).to_contain_text("live")
        site.stop_web()
        try:
            expect(page.locator("#live-state")).to_contain_text("disconnected")
        finally:
            site.restart_web()
        expect(page.locator("#live-state")).to_contain_text("live", timeout=40_000)


def test_it_shows_the_fields_error_then_publishes_and_follows_the_roll_out(page: Page) -> None:
    page.goto("/policies/")
    page.fill("#field-low", "95")
    page.click("button:has-text('Publish watermark of global')")
    expect(page.locator(".field-error")).to_have_text("Low must be below high.")
    expect(page.locator("#field-low")).to_have_value("95")
    page.fill("#field-low", "60")
    page.fill("#field-high", "80")
    page.click("button:has-text('Publish watermark of global')")
    expect(page.locator(".alert-success")).to_contain_text("no new prefixes at 80 %")
    line = page.locator("#rollout-line")
    expect(line).to_contain_text(re.compile(r"published v1[3-9] · 1 of 1 routers on v1[3-9]"))
    expect(page.locator("#panel-watermarks")).to_contain_text("80.0 %")


def test_it_goes_by_keyboard(page: Page) -> None:
    expect(page.locator("#help-open")).to_be_visible()
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#help")).to_be_hidden()
    page.keyboard.press("/")
    expect(page.locator("#scope-tenant")).to_be_focused()
    page.keyboard.type("acme")
    expect(page.locator("#scope-tenant")).to_have_value("acme")
    page.keyboard.press("Enter")
    page.wait_for_url("**tenant=acme**")
    settled(page)
    go_by_keys(page, "w", "**/workers/?tenant=acme**")


def test_it_keeps_an_open_table_and_the_theme(page: Page) -> None:
    settled(page)
    page.click("#panel-ttft a[title$='as table']")
    expect(page.locator("#table-ttft table")).to_be_visible()
    wait_for_updates(page, 2)
    expect(page.locator("#table-ttft table")).to_be_visible()
    page.click("#theme-toggle")
    expect(page.locator("html")).to_have_attribute("data-bs-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-bs-theme", "dark")


def test_it_switches_the_heat_maps_measure(page: Page) -> None:
    page.click("#panel-heat .segments a:has-text('Running')")
    page.wait_for_url("**m=running**")
    expect(page.locator("#panel-heat [aria-current]")).to_have_text("Running")


def test_it_opens_a_workers_figures_at_the_time_that_was_clicked(page: Page) -> None:
    standing_still(page, "heat")
    page.locator("#chart-heat").scroll_into_view_if_needed()
    box = page.locator("#chart-heat .nsewdrag").bounding_box()
    assert box
    page.mouse.click(box["x"] + box["width"] * 0.9, box["y"] + box["height"] * 0.4)
    page.wait_for_url("**worker=demo%2Fw2**")
    expect(page.locator(".crumbs")).to_contain_text("demo/w2")
    expect(page.locator("#live-state")).to_contain_text("fixed range")


def test_it_saves_a_chart_as_picture(page: Page) -> None:
    standing_still(page, "churn")
    with page.expect_download() as download:
        page.click("#panel-churn [data-png]")
    assert download.value.suggested_filename == "tidemark-churn.png"


@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 390)])
def test_it_has_no_serious_accessibility_finding(browser: Browser, site: Site, theme: str, width: int) -> None:
    with signed_in(browser, site, "olga", theme=theme, width=width) as (page, _):
        for path in PAGES:
            page.goto(path)
            page.wait_for_load_state("load")
            if path == "/":
                page.wait_for_selector("#chart-churn .main-svg", state="attached")
            page.evaluate(AXE.read_text())
            result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
            grave = [
                (path, finding["id"], finding["nodes"][0]["html"][:160], finding["nodes"][0]["failureSummary"][:200])
                for finding in result["violations"]
                if finding["impact"] in ("serious", "critical")
            ]
            assert not grave, grave
            overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert overflow <= 0, f"{path} is {overflow} px too wide at {width} px"


@pytest.mark.parametrize("path", ["/", "/policies/", "/workers/"])
def test_it_works_without_javascript(browser: Browser, site: Site, path: str) -> None:
    with signed_in(browser, site, "olga") as (page, _):
        state = page.context.storage_state()
    context = browser.new_context(base_url=site.url, java_script_enabled=False, storage_state=state)
    page = context.new_page()
    assert page.goto(path)
    expect(page.locator("main h2").first).to_be_visible()
    if path == "/policies/":
        page.fill("#field-low", "99")
        page.click("button:has-text('Publish watermark of global')")
        expect(page.locator(".field-error")).to_have_text("Low must be below high.")
    context.close()


@pytest.mark.parametrize("width", [1024, 1280, 1440, 1680])
def test_the_top_bar_cuts_no_control_where_the_scope_is_long_and_the_link_is_lost(
    browser: Browser, site: Site, width: int
) -> None:
    with signed_in(browser, site, "olga", width=width) as (page, _):
        page.goto("/?tenant=acme&ns=acme/support&worker=demo/w1")
        page.wait_for_load_state("load")
        page.evaluate("document.querySelector('#live-state .live-word b').textContent = 'disconnected'")
        boxes = [box for part in page.locator(".topbar > *:visible").all() if (box := part.bounding_box())]
        for part in page.locator(".topbar .segments, .topbar .live-state").all():
            assert part.evaluate("it => it.scrollWidth <= it.clientWidth + 1"), part.inner_text()
        for left, right in itertools.combinations(boxes, 2):
            apart = left["x"] + left["width"] <= right["x"] + 1 or right["x"] + right["width"] <= left["x"] + 1
            assert apart or abs(left["y"] - right["y"]) >= 16, (left, right)
