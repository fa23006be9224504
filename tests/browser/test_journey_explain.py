"""A request is explained in a browser: found by its id, with its phases, candidates and what others would have cost."""

from __future__ import annotations

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.browser.installed import MODEL, Installed
from tests.installation import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.flow, pytest.mark.timeout(240)]

A_KEY = """
from controlplane.namespaces.key_services import issue_key
from controlplane.namespaces.services import create_namespace
create_namespace(actor="system:test", tenant="acme", slug="explained", ttft_slo_ms=1)
result = issue_key(
    actor="system:test", namespace="acme/explained", name="app", scopes=["inference", "explain"]
).text
"""
"""An objective that every request misses, so that each is kept; a key that may know, so that candidates are too."""
TEXT = "Every answer names the paragraph that it rests on. " * 200
KEPT = "SELECT count(*) FROM telemetry_decisionrecord WHERE request_id = '{}'"


def _stream(installed: Installed, key: str, text: str) -> str:
    """Only a stream has a first token to be late; the request's id."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 4, "stream": True}
    url, headers = f"{installed.installation.router}/v1/chat/completions", {"authorization": f"Bearer {key}"}
    answer = httpx.post(url, json=body, headers=headers, timeout=20, trust_env=False)
    assert answer.status_code == 200 and answer.text.rstrip().endswith("[DONE]")
    return str(answer.headers["x-request-id"])


def test_a_request_is_found_and_explained(installed: Installed, browser: Browser) -> None:
    key = installed.python(A_KEY)
    wait_until(lambda: installed.ask(key, TEXT).status_code == 200, 15, "the key is served")
    request_id = [_stream(installed, key, f"{TEXT} Question {number}?") for number in range(3)][-1]
    wait_until(lambda: installed.installation.number(KEPT.format(request_id)) > 0, 15, "the decision is stored")
    with installed.signed_in(browser, "olga") as page:
        page.goto("/requests/")
        page.fill("input[name=id]", request_id)
        page.click("button:has-text('Filter')")
        page.wait_for_url(f"**/requests/{request_id}/**")
        expect(page.locator("#decision .meaning")).to_contain_text("saves")
        expect(page.locator("#decision")).to_contain_text("Delivered as predicted")
        expect(page.locator("#waterfall tbody tr.moment")).to_contain_text("first byte")
        expect(page.locator("#candidates tbody tr")).to_have_count(4)
        expect(page.locator("#candidates tr.chosen")).to_contain_text("chosen")
        expect(page.locator("#alternatives")).to_contain_text("least loaded")
        expect(page.locator("#alternatives")).to_contain_text("round robin over 4")
        page.click("#decision a:has-text('published v')")
        expect(page.locator("h1")).to_have_text("What holds where, and why")
        expect(page.locator("main")).to_contain_text("TTFT objective")
        page.goto("/requests/?ns=acme/explained&from=-1h&off=4096")
        expect(page.locator("#decisions .empty")).to_contain_text("No explained request")
        page.goto("/requests/?id=req-none")
        expect(page.locator("#not-kept")).to_contain_text("req-none is not kept")
    with installed.signed_in(browser, "bob") as page:
        page.goto(f"/requests/{request_id}/")
        expect(page.locator("#candidates")).not_to_contain_text("Requests there")
    with installed.signed_in(browser, "charlie") as page:
        assert page.goto(f"/requests/{request_id}/").status == 404
