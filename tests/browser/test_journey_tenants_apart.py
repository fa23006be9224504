"""Alice and Bob of acme, Charlie of globex: whatever page each can open, nothing of the other tenant is in it.

Links are followed from the start page on, and every page is read as it is sent: as its fragments, as its charts' tables
and CSV, over the websocket and through the search.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from dashboard.live_pages import PAGES
from tests.browser.installed import Installed
from tests.installation import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.flow, pytest.mark.timeout(300)]

PAGES_READ_MAX = 120
SIGNED_OUT = 4401
PEOPLE = {
    "alice": ("acme", ("globex", "initech", "coding-agent", "charlie")),
    "bob": ("acme", ("globex", "initech", "coding-agent", "charlie")),
    "charlie": ("globex", ("acme", "initech", "support-agent", "alice", "bob")),
}
"""Person → own tenant, and words of others' tenants that must appear nowhere."""
OF_ACME = (
    "/tenants/acme/",
    "/namespaces/acme/support/",
    "/status/acme/",
    "/revoke/tenant/acme/",
    "/revoke/namespace/acme/support/",
    "/fragments/status/?tenant=acme",
    "/charts/status_hits.csv?tenant=acme",
    "/requests/?tenant=acme",
    "/templates/acme/support-agent/1/",
)
STAY_AWAY = re.compile(r"^/(accounts|account|admin|static|api)/")
LINK = re.compile(r'(?:href|hx-get)="(/[^"#]*)')
KEYS = """
import json
result = [entry["key"] for entry in json.load(open({path!r}))]
"""
SEEN = "SELECT count(DISTINCT tenant) FROM telemetry_requestrollup WHERE requests > 0 AND tenant <> ''"


@pytest.fixture(scope="module")
def traffic(installed: Installed) -> None:
    """A request in every namespace of the demo, seen by the control plane."""
    for key in installed.python(KEYS.format(path=str(installed.installation.run_dir / "demo-keys.json"))):
        assert installed.ask(key, "Where is my order? " * 60).status_code == 200
    wait_until(lambda: installed.installation.number(SEEN) >= 3, 60, "telemetry of each tenant")


@pytest.mark.parametrize("person", PEOPLE)
def test_nothing_of_another_tenant_is_in_any_page(
    installed: Installed, browser: Browser, traffic: None, person: str
) -> None:
    own, foreign = PEOPLE[person]
    with installed.signed_in(browser, person) as page:
        read = dict(_walk(page.context, own))
        assert not {path: words for path, text in read.items() for words in foreign if _says(text, words)}
        _search_finds_nothing(page.context, foreign)
    assert {"/tenants/", f"/tenants/{own}/", f"/status/{own}/"} <= {path.partition("?")[0] for path in read}
    assert sum(own in text for text in read.values()) > 10


def _walk(context: BrowserContext, own: str) -> Iterator[tuple[str, str]]:
    """Every address that links lead to from the start, and what it says."""
    waiting = ["/", f"/status/{own}/", *(f"/fragments/{name}/?tenant={own}" for name in PAGES)]
    seen: set[str] = set()
    while waiting and len(seen) < PAGES_READ_MAX:
        path = waiting.pop(0).replace("&amp;", "&")
        if _same(path) in seen or STAY_AWAY.search(path):
            continue
        seen.add(_same(path))
        answer = context.request.get(path)
        assert answer.status < 500, path
        if answer.status == 200:
            text = answer.text()
            yield path, text
            waiting += LINK.findall(text) if "html" in answer.headers.get("content-type", "") else []


def _search_finds_nothing(context: BrowserContext, foreign: tuple[str, ...]) -> None:
    """What is another's is answered as what does not exist; only the words looked for come back."""
    nothing = context.request.get("/search/?list=1&text=nosuchname").text()
    for words in foreign:
        found = context.request.get(f"/search/?list=1&text={words}").text()
        assert found.replace(words, "nosuchname") == nothing, words
        assert context.request.get(f"/search/names/tenant/?text={words[:3]}").json()["names"] in (
            [],
            ["acme"],
            ["globex"],
        )


@pytest.mark.parametrize("person", PEOPLE)
def test_nothing_of_another_tenant_comes_over_the_websocket(
    installed: Installed, browser: Browser, traffic: None, person: str
) -> None:
    own, foreign = PEOPLE[person]
    with installed.signed_in(browser, person) as page, _socket(installed, page.context) as socket:
        pushed = _pushed(socket, "status", f"tenant={own}")
        assert own in pushed and not [words for words in foreign if _says(pushed, words)]
    other = "globex" if own == "acme" else "acme"
    with installed.signed_in(browser, person) as page, _socket(installed, page.context) as socket:
        with pytest.raises(ConnectionClosed):
            _pushed(socket, "status", f"tenant={other}")
        assert socket.close_code == SIGNED_OUT


def _socket(installed: Installed, context: BrowserContext) -> ClientConnection:
    """The live socket with the person's session, as the page opens it."""
    cookies = "; ".join(f"{one['name']}={one['value']}" for one in context.cookies())
    address = installed.installation.web.replace("http:", "ws:")
    return connect(
        f"{address}/ws/live", additional_headers={"Cookie": cookies}, origin=installed.installation.web,  # type: ignore[arg-type]
        open_timeout=15, proxy=None,
    )  # fmt: skip


def _pushed(socket: ClientConnection, page: str, query: str) -> str:
    socket.send(json.dumps({"type": "subscribe", "page": page, "query": query}))
    data = socket.recv(timeout=20)
    message = json.loads(gzip.decompress(data) if isinstance(data, bytes) else data)
    assert message["type"] == "panels", message
    return str(message["html"])


def test_another_tenants_addresses_do_not_exist(installed: Installed, browser: Browser, traffic: None) -> None:
    with installed.signed_in(browser, "charlie") as page:
        for path in OF_ACME:
            assert page.context.request.get(path).status == 404, path


def _same(path: str) -> str:
    """Ranges of time and order lead to nothing else."""
    return re.sub(r"[?&](from|to|tz|cmp|m|sort|page)=[^&]*", "", path).rstrip("?&")


def _says(text: str, words: str) -> bool:
    """As a word of its own: `bob` is not in `bobbin`."""
    return re.search(rf"(?<![a-z]){words}(?![a-z])", text) is not None
