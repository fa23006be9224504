"""The dashboard over a large fleet: server time and queries of each page, first paint, scripting, a thousand sockets.

    python -m benchmarks.dashboard [--json] [--only pages,paint,sockets,event] [--clients 1000]

Fills a database of its own (SQLite in a temporary folder, or a fresh one named by TIDEMARK_DATABASE_URL) with 200
workers, 1,000 tenants of 5 namespaces and 7 days of rollups, then serves it. Wall-clock time: what else runs on the
machine counts, which the load average beside the figures tells. `paint` and `event` need a Chromium.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from websockets.exceptions import WebSocketException

from benchmarks.report import Bar, Report
from tests import services

ROOT = Path(__file__).resolve().parents[1]
BARS = {
    "page, server time p95, slowest": 300.0,
    "page, queries, most": 12,
    "page, not served": 0,
    "first contentful paint, fleet page": 1000.0,
    "scripting of a live update": 16.0,
    "broadcast to a thousand sockets, p99": 2.0,
    "event on a worker to the page, p95": 3.0,
}
"""Name of a measure → the most it may be."""
SECONDS_MAX = 1800
ROUNDS = 12
"""Renderings of each page; the slowest but one in twelve is close to the 95th of 100."""
FRAMES = 12
PUSHES = 5
CLIENTS, DAYS = 1000, 7.0
SILENT = 20
"""Clients that never read: they must hold nobody up."""
FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')"
PATHS = (
    "/", "/?from=-1h", "/?from=-6h", "/?from=-7d", "/?tenant=t0004", "/?worker=p1/w005", "/?cmp=day", "/?m=requests",
    "/workers/p1/w005/", "/requests/req-00000001/", "/search/?text=t00", "/views/",
)  # fmt: skip
"""Beside the pages of the rail."""


@dataclass(frozen=True)
class Page:
    path: str
    status: int
    queries: int
    p95_ms: float
    size_kb: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--only", default="pages,paint,sockets,event")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--days", type=float, default=DAYS, help="of rollups")
    options = parser.parse_args()
    report = Report(rounds=1)
    found = run(report, options.only.split(","), clients=options.clients, days=options.days)
    verdicts = [(measure.name, measure.ours, measure.unit, measure.ok) for measure in report.measures]
    if options.json:
        print(json.dumps(found | {"measures": [measure.as_json() for measure in report.measures]}, indent=1))
    else:
        for page in found.get("pages", []):
            print(f"{page['path']:40} {page['queries']:3} queries {page['p95_ms']:8.1f} ms {page['size_kb']:5} KB")
        for name, ours, unit, ok in verdicts:
            print(f"{name:44} {'–' if ours is None else round(ours, 3)} {unit} {'ok' if ok else 'MISSED'}")
    sys.exit(0 if all(ok is not False for *_, ok in verdicts) else 1)


def measure(report: Report) -> None:
    """The group of `make bench`, in a process of its own: Django's settings are a process's once."""
    command = [sys.executable, "-m", "benchmarks.dashboard", "--json"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=SECONDS_MAX)
    if not done.stdout:
        raise subprocess.SubprocessError(f"exit status {done.returncode} without figures")
    found = json.loads(done.stdout)
    for item in found.pop("measures"):
        bars = [Bar(BARS[item["name"]])] if item["name"] in BARS else []
        report.add(item["name"], item["unit"], item["ours"], bars=bars, why=item["why"], failed=item["ok"] is False)
    report.notes["dashboard"] = found


def run(report: Report, only: list[str], *, clients: int = CLIENTS, days: float = DAYS) -> dict[str, Any]:
    """What was found, in detail; the measures with their bars go into the report."""
    found: dict[str, Any] = {"load_average": os.getloadavg()[0]}
    if {"pages", "paint", "sockets"} & set(only):
        with tempfile.TemporaryDirectory(prefix="tidemark-dashboard-") as name:
            folder = Path(name)
            with services.private_valkey(folder) as redis_url:
                _set_up(folder, redis_url, days)
                if "pages" in only:
                    found["pages"] = [asdict(page) for page in _pages(report)]
                with _serving(folder) as url, _changing():
                    if "paint" in only:
                        found["paint"] = _paint(report, url)
                    if "sockets" in only:
                        found["sockets"] = _or_why(report, "broadcast", lambda: _sockets(report, url, clients))
    if "event" in only:
        with tempfile.TemporaryDirectory(prefix="tidemark-event-") as name:
            found["event_s"] = _event(report, Path(name))
    return found


def _or_why(report: Report, name: str, act: Callable[[], dict[str, float]]) -> dict[str, float]:
    """What a machine that is too busy cannot measure costs only itself, and is missed."""
    try:
        return act()
    except (OSError, TimeoutError, WebSocketException) as error:
        report.add(name, "", None, why=f"{type(error).__name__}: {error}", failed=True)
        return {}


def _add(report: Report, name: str, unit: str, ours: float, why: str = "") -> None:
    report.add(name, unit, ours, bars=[Bar(BARS[name])], why=why)


def _set_up(folder: Path, redis_url: str, days: float) -> None:
    """Django over a filled database in this process; the server that follows is given the same environment."""
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "TIDEMARK_RUN_DIR": str(folder / "run"),
        "TIDEMARK_REDIS_URL": redis_url,
        "TIDEMARK_LOG_LEVEL": "ERROR",
    }
    import django

    django.setup()
    from django.conf import settings
    from django.core.management import call_command

    settings.ALLOWED_HOSTS = ["testserver", "127.0.0.1"]
    call_command("migrate", verbosity=0)
    call_command("collectstatic", verbosity=0, interactive=False)
    from tests.dashboard import big, story

    big.fill(big.Size(days=days))
    story.make_user("olga", role="operator")


def _pages(report: Report) -> list[Page]:
    from django.test import Client

    from controlplane.tenants.models import User
    from dashboard.rail import RAIL

    client = Client(raise_request_exception=False)
    client.force_login(User.objects.get(username="olga"))
    pages = [_page(client, path) for path in [*dict.fromkeys([*(item.path for item in RAIL), *PATHS])]]
    broken = [page.path for page in pages if page.status not in (200, 302)]
    _add(report, "page, not served", "", len(broken), ", ".join(broken))
    slowest, most = max(pages, key=lambda page: page.p95_ms), max(pages, key=lambda page: page.queries)
    _add(report, "page, server time p95, slowest", "ms", slowest.p95_ms, slowest.path)
    _add(report, "page, queries, most", "", most.queries, most.path)
    return pages


def _page(client: Any, path: str) -> Page:  # Any: Django's test client
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    from dashboard import fragments

    times, answer = [], client.get(path)
    for _ in range(ROUNDS):
        fragments.forget()
        with CaptureQueriesContext(connection) as captured:
            began = time.perf_counter()
            answer = client.get(path)
            times.append((time.perf_counter() - began) * 1000)
    return Page(path, answer.status_code, len(captured), round(sorted(times)[-2], 1), len(answer.content) // 1024)


@contextlib.contextmanager
def _serving(folder: Path) -> Iterator[str]:
    port = services.free_port()
    command = [sys.executable, "-m", "uvicorn", "controlplane.asgi:application", "--port", str(port), "--log-level",
               "error", "--no-access-log", "--ws-per-message-deflate", "false"]  # fmt: skip
    server = subprocess.Popen(command, cwd=ROOT)
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/accounts/login/", timeout=5):
                yield url
                return
            time.sleep(0.2)
        raise RuntimeError("the web server did not answer within 60 s")
    finally:
        server.terminate()
        server.wait(20)


@contextlib.contextmanager
def _changing() -> Iterator[None]:
    """A second of traffic each second, announced as the ingester announces it."""
    ended = threading.Event()
    thread = threading.Thread(target=_change_forever, args=(ended,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(10)


def _change_forever(ended: threading.Event) -> None:
    from django.db import connection
    from django.utils import timezone

    from controlplane.fleet.models import WorkerStatus
    from controlplane.telemetry.ingest import apply_entries
    from dashboard import announce
    from router.contract.telemetry import KvRow, RequestRow, RouterState, Shipment, encode_shipment

    seq = 1_000_000
    state = RouterState(snapshot_version=12, snapshot_age_s=1.0, inflight=9, index_blocks=41_000, index_bytes=9_000_000)
    while not ended.wait(1.0):
        now, seq = timezone.now(), seq + 1
        rows = [
            RequestRow(tenant=f"t{n:04d}", namespace=f"t{n:04d}/n0", pool="p0", worker="p0/w000", model="m-p0",
                       requests=1 + seq % 3, prompt_tokens=900, hit_tokens=600, hit_known=1, usage_known=1)
            for n in range(40)
        ]  # fmt: skip
        kv = [KvRow(worker="p0/w000", stored_blocks=seq % 50, removed_blocks=9, resident_blocks=7000 + seq % 100)]
        shipments = [
            Shipment(source="router-0", boot="b", seq=seq, at=now.timestamp() - 1, requests=rows, router=state),
            Shipment(source="kv-events", boot="b", seq=seq, at=now.timestamp() - 1, kv=kv),
        ]
        apply_entries([encode_shipment(shipment) for shipment in shipments], now=now)
        WorkerStatus.objects.update(ok_at=now, polled_at=now)
        announce.changed("telemetry")
    connection.close()


def _paint(report: Report, url: str) -> dict[str, float]:
    """First contentful paint of the fleet page, and scripting of one live update of all its panels."""
    from playwright.sync_api import sync_playwright

    from tests.browser.conftest import ARGUMENTS, updates, wait_for_updates
    from tests.browser.installed import sign_in
    from tests.dashboard.story import PASSWORD

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=services.chromium(), args=ARGUMENTS)
        page = browser.new_context(viewport={"width": 1440, "height": 900}, base_url=url).new_page()
        sign_in(page, "olga", PASSWORD)
        paints = []
        for _ in range(5):
            page.goto("/?tz=UTC")
            page.wait_for_function(f"{FIRST_PAINT}.length > 0")  # a light page is loaded before it is painted
            paints.append(float(page.evaluate(f"{FIRST_PAINT}[0].startTime")))
        wait_for_updates(page, 2, within_s=60)
        devtools = page.context.new_cdp_session(page)
        devtools.send("Performance.enable")
        frames = []
        for _ in range(FRAMES):
            seen, before_s = updates(page), _scripting_s(devtools)
            wait_for_updates(page, 1, within_s=60)
            frames.append((_scripting_s(devtools) - before_s) * 1000 / max(1, updates(page) - seen))
        browser.close()
    paint, frame = statistics.median(paints), statistics.median(frames)
    _add(report, "first contentful paint, fleet page", "ms", paint)
    _add(report, "scripting of a live update", "ms", frame)
    return {"first_contentful_paint_ms": paint, "scripting_ms": frame, "scripting_ms_max": max(frames)}


def _scripting_s(devtools: Any) -> float:  # Any: a CDP session
    metrics = {item["name"]: item["value"] for item in devtools.send("Performance.getMetrics")["metrics"]}
    return float(metrics["ScriptDuration"])


def _sockets(report: Report, url: str, clients: int) -> dict[str, float]:
    """From the rendering of a push to its arrival at each client, with some that never read."""
    lags_s = sorted(asyncio.run(_broadcasts(url, _session(), clients)))
    p99_s = lags_s[int(len(lags_s) * 0.99) - 1]
    _add(report, "broadcast to a thousand sockets, p99", "s", p99_s)
    return {"clients": clients, "p50_s": statistics.median(lags_s), "p99_s": p99_s, "max_s": lags_s[-1]}


def _session() -> str:
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
    from django.contrib.sessions.backends.db import SessionStore

    from controlplane.tenants.models import User

    user, session = User.objects.get(username="olga"), SessionStore()
    session[SESSION_KEY], session[HASH_SESSION_KEY] = str(user.pk), user.get_session_auth_hash()
    session[BACKEND_SESSION_KEY] = "controlplane.tenants.backends.OperatorBackend"
    session["of"] = secrets.token_hex(4)
    session.save()
    return str(session.session_key)


async def _broadcasts(url: str, session: str, clients: int) -> list[float]:
    from tests.browser.test_many_sockets import lags_s, subscribed

    silent = [await subscribed(url, session) for _ in range(SILENT)]
    readers = [await subscribed(url, session) for _ in range(clients)]
    connected_at_s = time.time()
    measured = await asyncio.gather(*(lags_s(reader, PUSHES, since_s=connected_at_s) for reader in readers))
    await asyncio.gather(*(socket.close() for socket in (*readers, *silent)), return_exceptions=True)
    return [lag for lags in measured for lag in lags]


def _event(report: Report, folder: Path) -> list[float]:
    """From an event on a worker to the page, through a whole installation."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    os.environ.setdefault("TIDEMARK_RUN_DIR", str(folder / "none"))
    import django

    django.setup()
    from playwright.sync_api import sync_playwright

    from tests.browser.conftest import ARGUMENTS
    from tests.browser.installed import installation_for_browsers
    from tests.browser.test_event_to_pixel import event_lags_s

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=services.chromium(), args=ARGUMENTS)
        with installation_for_browsers(folder, "--demo", "--no-traffic") as installed:
            lags_s = sorted(event_lags_s(browser, installed, 20))
        browser.close()
    _add(report, "event on a worker to the page, p95", "s", lags_s[-2])
    return lags_s


if __name__ == "__main__":
    main()
