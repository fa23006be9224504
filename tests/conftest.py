"""Fixtures of the whole suite, and what happens to tests whose program is missing.

`tests/settings.py` has already put the run folder into a temporary one.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import psycopg
import pytest
import redis

from tests import services

hypothesis.settings.register_profile("tidemark", deadline=None)
hypothesis.settings.load_profile("tidemark")
"""A busy machine stops a process for longer than hypothesis's 200 ms an example; speed has tests of its own."""

NEEDS = {
    "browser": ("chromium", services.chromium),
    "postgres": ("PostgreSQL", services.postgres_binaries),
    "compiler": ("a C compiler", services.c_compiler),
    "pango": ("Pango", services.pango),
}
"""Marker → (program, how it is found)."""

_missing: dict[str, int] = {}
"""Program → tests skipped for want of it."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    found = {program: find() for program, find in NEEDS.values()}
    for item in items:
        for marker, (program, _) in NEEDS.items():
            if item.get_closest_marker(marker) and not found[program]:
                _missing[program] = _missing.get(program, 0) + 1
                item.add_marker(pytest.mark.skip(reason=f"{program} is not installed"))
    _leave_out_real_workers(config, items)


def _leave_out_real_workers(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Real workers cost gigabytes and minutes: those tests run when they are asked for by marker (`make test-vllm`)."""
    if "vllm" not in (config.option.markexpr or ""):
        left_out = [item for item in items if item.get_closest_marker("vllm")]
        items[:] = [item for item in items if not item.get_closest_marker("vllm")]
        config.hook.pytest_deselected(items=left_out)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if _missing and services.IN_CI and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for program, count in _missing.items():
        verdict = "a failure under CI" if services.IN_CI else "install it to run them"
        terminalreporter.write_line(f"NOT RUN: {count} tests need {program}, which is missing: {verdict}", red=True)


@pytest.fixture(scope="session")
def _valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with services.private_valkey(tmp_path_factory.mktemp("valkey")) as url:
        yield url


@pytest.fixture
def valkey_url(_valkey: str, settings: pytest.FixtureRequest) -> str:
    """An empty Valkey of this test run, which the Django settings name for the length of the test."""
    with redis.Redis.from_url(_valkey) as client:
        client.flushall()
    settings.REDIS_URL = _valkey
    settings.CELERY_BROKER_URL = _valkey
    settings.CHANNEL_LAYERS = {
        "default": {
            "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
            "CONFIG": {"hosts": [_valkey], "prefix": "tidemark:channels"},
        }
    }
    return _valkey


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A PostgreSQL of this test run, whatever database the suite itself runs on."""
    if services.postgres_binaries() is None:
        pytest.skip("PostgreSQL is not installed")
    with services.private_postgres() as url:
        yield url


@pytest.fixture
def postgres_url(postgres_server: str) -> str:
    """An empty database of its own on that server."""
    name = f"test_{secrets.token_hex(6)}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return f"{postgres_server.rpartition('/')[0]}/{name}"


@pytest.fixture
def free_port() -> int:
    return services.free_port()


@pytest.fixture(scope="session")
def chromium_path() -> str:
    path = services.chromium()
    if path is None:
        pytest.skip("chromium is not installed")
    return path


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run folder of the test's own, for processes that it starts."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    return folder
