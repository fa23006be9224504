"""A worker is drained in a browser: its cost is read first, its requests end, others take what follows."""

from __future__ import annotations

import threading

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.browser.installed import MODEL, Installed
from tests.installation import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.flow, pytest.mark.timeout(240)]

TEXT = "The tide table of the harbour is read from left to right. " * 300
LONG_TOKENS = 400
"""Streams long enough to be seen running, short enough to end."""


TOLD = "SELECT count(*) FROM telemetry_prefixheatrollup h, telemetry_requestrollup r " \
       "WHERE h.namespace = 'acme/support' AND h.by_worker LIKE '%{0}%' AND r.worker = '{0}'"  # fmt: skip
"""Its share of a hot prefix and of a tenant's requests: what the page of consequences is reckoned from."""


class Streams:
    """Requests of one prefix that run side by side until they end."""

    def __init__(self, installed: Installed, count: int) -> None:
        self.statuses: list[int] = []
        self._url = f"{installed.installation.router}/v1/chat/completions"
        self._headers = {"authorization": f"Bearer {installed.demo_key()}"}
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        message = {"role": "user", "content": f"{TEXT} Ship {number}?"}
        body = {"model": MODEL, "messages": [message], "max_tokens": LONG_TOKENS, "stream": True}
        with httpx.stream("POST", self._url, json=body, headers=self._headers, timeout=60, trust_env=False) as answer:
            ended = list(answer.iter_lines())[-2:]
            self.statuses.append(answer.status_code if "data: [DONE]" in ended else 0)

    def end(self) -> list[int]:
        for thread in self._threads:
            thread.join(60)
        return self.statuses


def _busiest(installed: Installed) -> tuple[str, int]:
    outstanding: dict[str, int] = installed.state()["table"]["worker_outstanding"]
    worker = max(outstanding, key=lambda name: outstanding[name])
    return worker, outstanding[worker]


def test_a_worker_is_drained_and_made_ready_again(installed: Installed, browser: Browser) -> None:
    for _ in range(2):
        assert installed.ask(installed.demo_key(), TEXT).status_code == 200
    streams = Streams(installed, 4)
    wait_until(lambda: _busiest(installed)[1] > 0, 15, "requests run")
    worker = _busiest(installed)[0]
    wait_until(lambda: installed.installation.number(TOLD.format(worker)) > 0, 40, "what it served and holds is told")
    with installed.signed_in(browser, "olga") as page:
        page.goto(f"/workers/?q={worker}")
        page.click("#panel-workers a:has-text('Drain')")
        expect(page.locator(".cost")).to_contain_text("3 other ready workers remain")
        expect(page.locator("#consequences")).to_contain_text("hot prefix")
        expect(page.locator("#consequences tbody").first).to_contain_text("acme")
        page.fill("#reason", "new driver")
        page.click("button:has-text('Drain')")
        leaving = page.locator("#panel-worker_leaving")
        expect(leaving).to_contain_text("draining since")
        expect(leaving).to_contain_text("new driver")
        wait_until(
            lambda: installed.state()["table"]["worker_states"][worker] == "drain", 10, "the router knows of the drain"
        )
        assert streams.end() == [200] * 4, "what ran there went on to its end"
        expect(leaving).to_contain_text("0 running: it may be stopped.", timeout=40_000)
        for _ in range(4):
            assert installed.ask(installed.demo_key(), TEXT).status_code == 200
        assert installed.state()["table"]["worker_outstanding"].get(worker, 0) == 0
        page.goto("/workers/removal/")
        expect(page.locator("#removal tbody tr").first).to_contain_text(worker)
        expect(page.locator("#removal tbody tr").first).to_contain_text("takes nothing: nothing is lost")
        page.goto(f"/workers/{worker}/")
        page.click("a:has-text('Make')")
        page.wait_for_url("**/state/ready/**")
        page.click("button:has-text('Make')")
        expect(page.locator(".alert-success")).to_contain_text("takes requests again")
        expect(page.locator("#panel-leaving li")).to_have_count(0)
    wait_until(lambda: installed.state()["table"]["worker_states"][worker] == "ready", 10, "it serves again")
