"""Finding one's way: palette, filters, zoom by dragging, comparison, saved views, a narrow rail."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import settled, standing_still

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]


def test_the_palette_leads_to_a_worker_by_part_of_its_name(page: Page) -> None:
    page.keyboard.press("Control+k")
    expect(page.locator("#palette-text")).to_be_focused()
    expect(page.locator("#palette-hits")).to_contain_text("Fleet")
    page.keyboard.type("w2")
    expect(page.locator("#palette-hits a").first).to_contain_text("demo/w2")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#palette-hits a").first).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url("**/workers/demo/w2/**")


def test_keys_pressed_before_the_page_can_hear_them_are_not_lost(page: Page) -> None:
    held: list[Route] = []
    page.route("**/js/frame.js", lambda request: held.append(request))
    page.goto("/", wait_until="commit")
    page.wait_for_selector("#palette-text", state="attached")
    deadline = time.monotonic() + 20
    while not held:
        assert time.monotonic() < deadline, "the page never asked for its module"
        page.wait_for_timeout(50)
    page.keyboard.press("Control+k")
    page.keyboard.type("w2")
    expect(page.locator("#palette")).to_be_hidden()
    for request in held:
        request.continue_()
    expect(page.locator("#palette-text")).to_have_value("w2")
    expect(page.locator("#palette-hits a").first).to_contain_text("demo/w2")


def test_a_field_of_the_filter_completes_names_and_narrows_the_page(page: Page) -> None:
    page.click("#scope-pop > summary")
    page.fill("#scope-ns", "acme/s")
    expect(page.locator("#suggest-ns option")).to_have_count(2)
    page.fill("#scope-ns", "acme/support")
    page.click("#scope-pop button:has-text('Narrow')")
    page.wait_for_url("**ns=acme%2Fsupport**")
    expect(page.locator(".crumbs")).to_contain_text("acme/support")


def test_a_drag_zooms_the_page_and_the_back_button_leads_out(page: Page) -> None:
    standing_still(page, "ttft")
    box = page.locator("#chart-ttft .nsewdrag").bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 60, steps=8)
    page.mouse.up()
    page.wait_for_url(re.compile(r"from=\d{4}-.*to=\d{4}-"))
    expect(page.locator("#live-state")).to_contain_text("fixed range")
    expect(page.locator("#range-pop > summary")).to_contain_text("–")
    page.go_back()
    expect(page.locator("#live-state")).to_contain_text("live")


def test_the_crosshair_of_one_chart_stands_on_the_others(page: Page) -> None:
    standing_still(page, "ttft", "sources")
    box = page.locator("#chart-ttft .nsewdrag").bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] / 2)
    expect(page.locator("#chart-sources .crosshair")).to_be_visible()
    expect(page.locator("#chart-ttft .crosshair")).to_be_hidden()


def test_it_compares_with_yesterday_and_with_nothing(page: Page) -> None:
    page.click("#compare-pop > summary")
    page.click("#compare-pop a:has-text('yesterday')")
    page.wait_for_url("**cmp=day**")
    expect(page.locator("#compare-pop > summary")).to_contain_text("same time yesterday")
    page.click("#compare-pop > summary")
    page.click("#compare-pop a:has-text('nothing')")
    page.wait_for_url("**cmp=none**")


def test_it_shows_times_in_another_zone(page: Page) -> None:
    page.click("#range-pop > summary")
    page.fill("#range-pop input[list=zones]", "Asia/Tokyo")
    page.click("button:has-text('Show times there')")
    page.wait_for_url("**tz=Asia%2FTokyo**")
    expect(page.locator(".topbar .zone")).to_have_text("Asia/Tokyo")


def test_a_view_is_saved_found_and_deleted(page: Page) -> None:
    page.goto("/?from=-1h&tenant=acme&tz=UTC")
    page.click(".user-menu > summary")
    page.fill(".save-view input[name=name]", "night watch")
    page.click(".save-view button")
    expect(page.locator(".alert-success")).to_contain_text("night watch")
    settled(page)
    page.keyboard.press("Control+k")
    expect(page.locator("#palette")).to_be_visible()
    page.keyboard.type("night")
    expect(page.locator("#palette-hits a").first).to_have_attribute("href", re.compile("tenant=acme"))
    page.goto("/views/")
    page.click("button[aria-label='Delete night watch']")
    expect(page.locator("main")).to_contain_text("No saved view yet")


def test_the_rail_is_narrow_until_it_is_made_wide(page: Page) -> None:
    page.click("#rail-toggle")
    expect(page.locator("html")).to_have_attribute("data-rail", "narrow")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-rail", "narrow")
    expect(page.get_by_role("link", name="Workers", exact=True).first).to_be_visible()
    page.click("#rail-toggle")
    expect(page.locator("html")).to_have_attribute("data-rail", "wide")


def test_a_phone_has_four_pages_at_hand_and_all_behind_a_menu(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    expect(page.locator("#rail")).to_be_hidden()
    page.click(".rail-quick button")
    expect(page.locator("#rail")).to_be_visible()
    page.click("#rail a:has-text('Policies')")
    page.wait_for_url("**/policies/**")
