"""All of it by keyboard: shortcuts, menus, dialogs, and a mark that shows where one stands."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Request, expect

from tests.browser.conftest import go_by_keys, settled, standing_still

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

KEY_ID, SECRET = "abcdef012345", "Zq7-" * 10 + "abc"
OUTLINE = "element => getComputedStyle(element).outlineStyle + getComputedStyle(element).outlineWidth"


def test_the_first_tab_leads_past_the_rail(page: Page) -> None:
    page.goto("/tenants/")
    page.keyboard.press("Tab")
    skip = page.locator(".skip-link")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("main#main")).to_be_focused()
    page.keyboard.press("Tab")
    inside = page.locator("main :focus")
    expect(inside).to_have_count(1)
    assert inside.evaluate(OUTLINE).startswith(("solid", "auto")), "where one stands is seen"


def test_menus_and_dialogs_are_opened_walked_and_left(page: Page) -> None:
    settled(page)
    compare = page.locator("#compare-pop")
    compare.locator("summary").focus()
    page.keyboard.press("Enter")
    for at in range(2):
        page.keyboard.press("ArrowDown")
        expect(compare.locator(".menu a").nth(at)).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(compare.locator(".menu a").first).to_be_focused()
    page.keyboard.press("Escape")
    expect(compare.locator(".menu")).to_be_hidden()
    expect(compare.locator("summary")).to_be_focused()
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#help")).to_be_hidden()
    page.keyboard.press("Control+k")
    expect(page.locator("#palette-text")).to_be_focused()
    expect(page.locator("#palette-hits a").first).to_be_visible()
    page.keyboard.press("ArrowDown")
    expect(page.locator("#palette-hits a").first).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(page.locator("#palette-text")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#palette")).to_be_hidden()
    page.keyboard.press("/")
    expect(page.locator("#scope-tenant")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#scope-pop .menu")).to_be_hidden()
    go_by_keys(page, "a", "**/alerts/**")


def test_a_pasted_key_is_no_part_of_any_address(page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(_address(request)))
    settled(page)
    page.keyboard.press("Control+k")
    page.locator("#palette-text").fill(f"tm_{KEY_ID}_{SECRET}")
    expect(page.locator("#palette-hits")).to_contain_text("Nothing found")
    page.goto("/tenants/")
    page.fill("main input[name=q]", f"tm_{KEY_ID}_{SECRET}")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(f"q=tm_{KEY_ID}"))
    assert sum(f"tm_{KEY_ID}" in address for address in asked) >= 2
    assert not [address for address in asked if SECRET[:8] in address]


def _address(request: Request) -> str:
    return request.url


def test_shift_and_a_drag_write_a_note_that_every_chart_shows(page: Page) -> None:
    standing_still(page, "ttft", "sources")
    box = page.locator("#chart-ttft .nsewdrag").bounding_box()
    assert box
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 60, steps=6)
    page.mouse.up()
    page.keyboard.up("Shift")
    expect(page.locator("#drag-text")).to_be_focused()
    expect(page.locator("#drag-begins")).to_have_value(re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d"))
    page.fill("#drag-text", "new switch in rack 4")
    page.click("#note-dialog button:has-text('Write the note')")
    expect(page.locator(".alert-success")).to_contain_text("The note stands on the charts")
    settled(page, "ttft", "sources")
    for name in ("ttft", "sources", "churn"):
        expect(page.locator(f"#chart-{name}")).to_have_attribute("data-figure", re.compile("new switch in rack 4"))
    page.goto("/notes/")
    page.click("button[aria-label*='new switch in rack 4']")
    expect(page.locator("#notes")).to_contain_text("No note yet")
