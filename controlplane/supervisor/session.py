"""One run of `manage.py up`, in order: ports, Valkey, preparation, roles, readiness, traffic, end.

Valkey comes first because a change published during seeding is pushed through it; traffic comes last, when the router
holds a snapshot, so that no request of the demo meets a router without policy.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from django.conf import settings

from controlplane.config import Config, embedded_valkey_url
from controlplane.demo import workers as demo
from controlplane.supervisor import prepare, roles, valkey
from controlplane.supervisor.config import EVENTS_PORT_OFFSET, REPLAY_PORT_OFFSET, Addresses
from controlplane.supervisor.lag import sample_lags
from controlplane.supervisor.live_client import count_updates, session_cookie
from controlplane.supervisor.ports import Port, taken
from controlplane.supervisor.processes import Role, own_age_s
from controlplane.supervisor.readiness import NotReady, url_answers, valkey_answers
from controlplane.supervisor.report import build_report, save_report, settled
from controlplane.supervisor.supervisor import Supervisor
from controlplane.supervisor.terminal import Terminal

VALKEY_WITHIN_S = 20.0
SERVING_WITHIN_S = 120.0
TRAFFIC_END_WITHIN_S = 15.0
FAILED = 1
USAGE = 2


@dataclass(frozen=True)
class Options:
    demo: bool = False
    headless_s: float | None = None
    """Serve for so long, then report and end; None = until a signal."""
    traffic: str = "mixed"
    with_traffic: bool = True
    routing: str = ""
    report: Path | None = None


@dataclass
class Session:
    options: Options
    config: Config
    addresses: Addresses
    terminal: Terminal
    supervisor: Supervisor
    stop: asyncio.Event
    started_s: float = field(default_factory=lambda: time.monotonic() - own_age_s())
    serving_at: datetime | None = None
    seconds_to_serving: float = 0.0
    updates: list[float] = field(default_factory=list)
    """Times of the dashboard updates that the live client saw."""
    updates_problem: str = ""
    ingest_lags_ms: dict[tuple[str, datetime], float] = field(default_factory=dict)
    """(source, second) → what `lag.sample` saw."""

    @property
    def run_dir(self) -> Path:
        return self.config.run_dir.resolve()

    @property
    def keys_file(self) -> Path:
        return self.run_dir / "demo-keys.json"


async def run_session(options: Options, config: Config) -> int:
    """Exit status."""
    addresses = Addresses()
    _note_valkey_url(config)
    terminal = Terminal(config.run_dir / "logs" / "up.log")
    if complaints := taken(needed_ports(options, config, addresses)):
        for complaint in complaints:
            terminal.say(complaint)
        return USAGE
    terminal.take_over_logging()
    session = Session(options, config, addresses, terminal, Supervisor(terminal), asyncio.Event())
    _listen_for_signals(session)
    try:
        return await _run(session)
    except NotReady as error:
        terminal.say(str(error))
        return FAILED
    finally:
        terminal.say("ending")
        await session.supervisor.stop_all()
        if not config.redis_url:
            (session.run_dir / "valkey-url").unlink(missing_ok=True)
        terminal.say("ended")


async def _run(session: Session) -> int:
    main = asyncio.create_task(_serve_and_wait(session))
    stop = asyncio.create_task(session.stop.wait())
    await asyncio.wait({main, stop}, return_when=asyncio.FIRST_COMPLETED)
    if main.done():
        stop.cancel()
        return main.result()
    main.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await main
    return 0


async def _serve_and_wait(session: Session) -> int:
    around = _surroundings(session)
    _start_demo_workers(session, around)
    await _start_valkey(session)
    await asyncio.to_thread(_prepare, session)
    session.supervisor.start(roles.web(around))
    session.supervisor.start(roles.router(around))
    await _wait_until_serving(session)
    # After what requests and operators wait for: ten interpreters starting at once would delay those two.
    for role in (roles.celery_worker(around), roles.beat(around), roles.kv_events(around)):
        session.supervisor.start(role)
    if session.options.headless_s is None:
        if session.options.demo and session.options.with_traffic:
            session.supervisor.start(_traffic(session, duration_s=None))
        await asyncio.Event().wait()
    return await _run_headless(session, session.options.headless_s or 0)


def _note_valkey_url(config: Config) -> None:
    """So that other commands on this run folder find the embedded Valkey while it runs."""
    if config.redis_url:
        return
    url = embedded_valkey_url(config)
    prepare.write_private(config.run_dir / "valkey-url", url + "\n")
    if url != settings.REDIS_URL:
        # The settings were read with what an earlier run had noted: begin again with the note that is right.
        os.execv(sys.executable, [sys.executable, *sys.argv])  # noqa: S606  (the same command)


def needed_ports(options: Options, config: Config, addresses: Addresses) -> list[Port]:
    a = addresses
    ports = [
        Port(a.web_host, a.web_port, "dashboard and REST API", "TIDEMARK_WEB_PORT"),
        Port(a.router_host, a.router_port, "router", "TIDEMARK_ROUTER_PORT"),
        Port(a.router_admin_host, a.router_admin_port, "router's admin port", "TIDEMARK_ROUTER_ADMIN_PORT"),
    ]
    if not config.redis_url:
        ports.append(Port("127.0.0.1", config.valkey_port, "embedded Valkey", "TIDEMARK_VALKEY_PORT"))
    if options.demo:
        for index in range(demo.WORKERS):
            for offset in (0, EVENTS_PORT_OFFSET, REPLAY_PORT_OFFSET):
                port = a.demo_worker_port + index + offset
                ports.append(Port("127.0.0.1", port, "simulated worker", "TIDEMARK_DEMO_WORKER_PORT"))
    return ports


def _surroundings(session: Session) -> roles.Surroundings:
    return roles.Surroundings(
        addresses=session.addresses,
        run_dir=session.run_dir,
        redis_url=session.config.redis_url or embedded_valkey_url(session.config),
        fleet_key_given=bool(os.environ.get("TIDEMARK_FLEET_KEY") or os.environ.get("TIDEMARK_FLEET_KEY_FILE")),
    )


def _start_demo_workers(session: Session, around: roles.Surroundings) -> None:
    if session.options.demo:
        for worker in demo.demo_workers(session.addresses.demo_worker_port):
            session.supervisor.start(Role(worker.name, worker.argv, around.environment()))


async def _start_valkey(session: Session) -> None:
    """Raises NotReady when nothing answers at the URL that every role uses."""
    if session.config.redis_url:
        await valkey_answers(session.config.redis_url, within_s=VALKEY_WITHIN_S)
        return
    binary = valkey.server_binary()
    if binary is None:
        raise NotReady("no valkey-server found; install Valkey or Redis, or set TIDEMARK_REDIS_URL to a running one")
    password = (session.run_dir / "valkey-password").read_text().strip()
    configuration = valkey.write_configuration(
        session.run_dir / "valkey", port=session.config.valkey_port, password=password
    )
    session.supervisor.start(roles.valkey(binary, configuration))
    await valkey_answers(embedded_valkey_url(session.config), within_s=VALKEY_WITHIN_S)


def _prepare(session: Session) -> None:
    """Runs on a thread: the event loop goes on relaying output meanwhile."""
    if prepare.migrate():
        session.terminal.say("database schema brought up to date")
    if prepare.collect_static(session.run_dir):
        session.terminal.say("static files collected")
    password = prepare.ensure_admin(session.run_dir)
    if password:
        where = session.run_dir / "admin-password"
        session.terminal.secret(f"account made: {prepare.ADMIN_NAME} · password {password} · kept in {where}")
    if session.options.demo:
        from controlplane.demo.fleet import seed

        seed(
            base_port=session.addresses.demo_worker_port,
            keys_file=session.keys_file,
            routing=session.options.routing,
        )


async def _wait_until_serving(session: Session) -> None:
    address = session.addresses
    await url_answers(f"{address.web_url}/healthz", within_s=SERVING_WITHIN_S)
    await url_answers(f"{address.router_admin_url}/readyz", within_s=SERVING_WITHIN_S)
    if session.options.demo:
        for worker in demo.demo_workers(address.demo_worker_port):
            await url_answers(f"{worker.url}/health", within_s=SERVING_WITHIN_S)
    session.serving_at = datetime.now(UTC)
    session.seconds_to_serving = time.monotonic() - session.started_s
    _announce(session)


def _announce(session: Session) -> None:
    say, address = session.terminal.say, session.addresses
    say(f"serving after {session.seconds_to_serving:.1f} s")
    say(f"dashboard  {address.web_url}/   user {prepare.ADMIN_NAME}, password in {session.run_dir}/admin-password")
    say(f"router     {address.router_url}/v1   admin {address.router_admin_url}/metrics")
    if session.options.demo:
        body = f'{{"model":"{demo.MODEL}","messages":[{{"role":"user","content":"Hello"}}],"max_tokens":16}}'
        say(
            f"try        curl {address.router_url}/v1/chat/completions -H 'content-type: application/json' "
            f"-H \"authorization: Bearer $(cat {session.run_dir}/demo-key)\" -d '{body}'"
        )
    say("Ctrl-C ends everything")


def _traffic(session: Session, *, duration_s: float | None) -> Role:
    argv = demo.traffic_argv(
        keys_file=session.keys_file,
        router_url=session.addresses.router_url,
        trace=session.options.traffic,
        duration_s=duration_s,
        report=session.run_dir / "traffic-report.json",
    )
    # Its report goes to the file; on standard output it would be forty lines of the common log.
    environment = {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    return Role("traffic", argv, environment, runs_once=duration_s is not None, shows_stdout=False)


async def _run_headless(session: Session, duration_s: float) -> int:
    """Serves for the time, lets the last figures arrive, reports. 0 when the loop worked."""
    session.run_dir.joinpath("traffic-report.json").unlink(missing_ok=True)
    watchers = [asyncio.create_task(_count_updates(session)), asyncio.create_task(sample_lags(session.ingest_lags_ms))]
    traffic = session.options.demo and session.options.with_traffic
    if traffic:
        session.supervisor.start(_traffic(session, duration_s=duration_s))
    await asyncio.sleep(duration_s)
    if traffic:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(session.supervisor.wait_for_end_of("traffic"), TRAFFIC_END_WITHIN_S)
        await session.supervisor.stop(["traffic"])
    await settled()
    for watcher in watchers:
        watcher.cancel()
    return await asyncio.to_thread(_report, session, duration_s)


async def _count_updates(session: Session) -> None:
    try:
        cookie = await asyncio.to_thread(session_cookie)
        await count_updates(session.addresses.web_url, cookie, session.updates)
    except Exception as error:  # any failure is a line of the report, never the end of the run
        session.updates_problem = f"{type(error).__name__}: {error}"


def _report(session: Session, duration_s: float) -> int:
    assert session.serving_at is not None
    report = build_report(
        since=session.serving_at,
        duration_s=duration_s,
        seconds_to_serving=session.seconds_to_serving,
        restarts=session.supervisor.restarts(),
        ingest_lags_ms=[lag for (_, at), lag in session.ingest_lags_ms.items() if at >= session.serving_at],
        websocket_updates=len(session.updates) if not session.updates_problem else None,
        websocket_problem=session.updates_problem,
        client_report=session.run_dir / "traffic-report.json",
        traffic_expected=session.options.demo and session.options.with_traffic,
    )
    if session.options.report:
        save_report(report, session.options.report)
        session.terminal.say(f"report written to {session.options.report}")
    for problem in report["problems"]:
        session.terminal.say(f"problem: {problem}")
    return FAILED if report["problems"] else 0


def _listen_for_signals(session: Session) -> None:
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        if session.stop.is_set():
            session.terminal.say("killing everything")
            session.supervisor.kill_all()
        session.stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted)
