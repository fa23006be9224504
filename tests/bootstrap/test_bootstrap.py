"""The bootstrap chooses an interpreter that runs, and installs only what changed."""

from __future__ import annotations

import importlib.util
import os
import stat
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parent.parent.parent / "docker" / "bootstrap.py"
REAL = f"{sys.version_info.major} {sys.version_info.minor}"


@pytest.fixture
def bootstrap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script as a module, with an empty PATH, home and project of its own."""
    spec = importlib.util.spec_from_file_location("bootstrap", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("bin", "home", "project/tests"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PYENV_ROOT", raising=False)
    project = tmp_path / "project"
    monkeypatch.setattr(module, "ROOT", str(project))
    monkeypatch.setattr(module, "VENV", str(project / ".venv"))
    monkeypatch.setattr(module, "VENV_PYTHON", str(project / ".venv/bin/python"))
    monkeypatch.setattr(module, "STAMP", str(project / ".venv/tidemark-stamp.json"))
    for name in ("requirements.txt", "tests/requirements.txt"):
        (project / name).write_text(f"# {name}\n")
    return module


def fake_python(path: Path, answer: str, status: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{answer}'\nexit {status}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_it_takes_the_first_candidate_that_runs(bootstrap: ModuleType, tmp_path: Path) -> None:
    fake_python(tmp_path / "bin/python3.13", "", status=127)
    good = fake_python(tmp_path / "bin/python3.12", "cpython 3 12")
    assert bootstrap.find_interpreter() == str(good)


def test_it_looks_into_pyenv_behind_a_failing_shim(bootstrap: ModuleType, tmp_path: Path) -> None:
    fake_python(tmp_path / "bin/python3.13", "pyenv: python3.13: command not found", status=127)
    fake_python(tmp_path / "bin/python3", "cpython 3 11")
    good = fake_python(tmp_path / "home/.pyenv/versions/3.13.0/bin/python", "cpython 3 13")
    fake_python(tmp_path / "home/.pyenv/versions/3.12.1/bin/python", "cpython 3 12")
    assert bootstrap.find_interpreter() == str(good)


def test_it_respects_pyenv_root(bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "elsewhere"))
    good = fake_python(tmp_path / "elsewhere/versions/3.12.9/bin/python", "cpython 3 12")
    assert bootstrap.find_interpreter() == str(good)


def test_it_accepts_a_plain_python3_that_is_new_enough(bootstrap: ModuleType, tmp_path: Path) -> None:
    good = fake_python(tmp_path / "bin/python3", "cpython 3 14")
    assert bootstrap.find_interpreter() == str(good)


@pytest.mark.parametrize("answer", ["pypy 3 13", "cpython 3", "hello", "cpython 3 11"])
def test_it_passes_over_what_is_no_fitting_cpython(bootstrap: ModuleType, tmp_path: Path, answer: str) -> None:
    fake_python(tmp_path / "bin/python3.13", answer)
    good = fake_python(tmp_path / "bin/python3.12", "cpython 3 12")
    assert bootstrap.find_interpreter() == str(good)


def test_without_any_it_asks_uv(bootstrap: ModuleType, tmp_path: Path) -> None:
    fake_python(tmp_path / "bin/uv", "/managed/python3.13")
    assert bootstrap.find_interpreter() == "/managed/python3.13"


def test_without_any_and_without_uv_it_says_what_to_install(bootstrap: ModuleType, tmp_path: Path) -> None:
    fake_python(tmp_path / "bin/uv", "", status=1)
    with pytest.raises(bootstrap.BootstrapError, match=r"needs CPython 3\.12 or 3\.13"):
        bootstrap.find_interpreter()


class Installs:
    """Stands in for venv and pip, and counts."""

    def __init__(self, bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        self.installed: list[str] = []
        self._venv_python = Path(bootstrap.VENV_PYTHON)
        monkeypatch.setattr(bootstrap, "find_interpreter", lambda: sys.executable)
        monkeypatch.setattr(bootstrap, "make_venv", lambda python: self.make_venv())
        monkeypatch.setattr(bootstrap, "install", self.installed.append)

    def make_venv(self) -> None:
        fake_python(self._venv_python, f"cpython {REAL}")


def test_a_second_start_installs_nothing(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    installs = Installs(bootstrap, monkeypatch)
    bootstrap.make_ready(False)
    bootstrap.make_ready(False)
    assert installs.installed == ["requirements.txt"]


def test_the_tests_requirements_cover_the_product(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    installs = Installs(bootstrap, monkeypatch)
    bootstrap.make_ready(True)
    bootstrap.make_ready(False)
    bootstrap.make_ready(True)
    assert installs.installed == ["tests/requirements.txt"]


def test_a_changed_pin_is_installed(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    installs = Installs(bootstrap, monkeypatch)
    bootstrap.make_ready(False)
    Path(bootstrap.ROOT, "requirements.txt").write_text("other==2\n")
    bootstrap.make_ready(False)
    assert installs.installed == ["requirements.txt"] * 2


def test_an_interrupted_install_is_repeated(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    installs = Installs(bootstrap, monkeypatch)

    def interrupted(requirements: str) -> None:
        raise bootstrap.BootstrapError("no network")

    monkeypatch.setattr(bootstrap, "install", interrupted)
    with pytest.raises(bootstrap.BootstrapError):
        bootstrap.make_ready(False)
    monkeypatch.setattr(bootstrap, "install", installs.installed.append)
    bootstrap.make_ready(False)
    assert installs.installed == ["requirements.txt"]


def test_the_script_is_valid_for_an_old_python3() -> None:
    """It runs before any interpreter was chosen: no syntax newer than 3.8."""
    code = "import ast, sys; ast.parse(open(sys.argv[1]).read(), feature_version=(3, 8))"
    assert subprocess.run([sys.executable, "-c", code, str(SCRIPT)]).returncode == 0
    assert os.access(SCRIPT, os.R_OK)
