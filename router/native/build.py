"""Compiles the hot modules: mypyc translates them to C, a C compiler does the rest, several files at a time."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from router.native.modules import FLAGS, GROUP, MODULES, ROOT, build_folder, builds, library_of, source_of

BUILDS_KEPT = 4
"""Checkouts and branches that share an environment."""
MYPY_CONFIG = "[mypy]\nfollow_imports = silent\nignore_missing_imports = true\n"
"""mypyc refuses type errors within the modules; the lint run judges everything else."""


class CannotCompile(Exception):
    """What is missing on this machine. The router stays interpreted."""


class BuildFailed(Exception):
    """Everything is there and it went wrong all the same."""


@dataclass(frozen=True)
class Extension:
    """One library to be linked: the group with all code, or a module's entry into it."""

    name: str
    sources: tuple[str, ...]
    include_dirs: tuple[str, ...]


def build() -> Path:
    """The folder of the build for these sources, made when it is missing. Raises CannotCompile or BuildFailed."""
    compiler = _compiler()
    version = _mypy_version()
    folder = build_folder()
    if _manifest(folder).get("mypy") == version:
        return folder
    builds().mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=builds(), prefix="building-") as name:
        work = Path(name)
        extensions = _translate(work / "c")
        if folder != build_folder():
            raise CannotCompile("its sources changed meanwhile")
        _compile(extensions, compiler, work)
        _put_in_place(work / "lib", folder, {"mypy": version, "python": sys.version, "modules": list(MODULES)})
    _forget_old_builds(folder)
    return folder


def _compiler() -> str:
    name = os.environ.get("CC") or "cc"
    found = shutil.which(name) or shutil.which("gcc")
    if found is None:
        raise CannotCompile("there is no C compiler")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        raise CannotCompile("Python's C headers are missing (Debian: python3-dev)")
    return found


def _mypy_version() -> str:
    try:
        import setuptools  # type: ignore[import-untyped]  # noqa: F401 - mypyc's own need
        from mypy.version import __version__
    except ImportError:
        raise CannotCompile("mypy and setuptools are not installed") from None
    return str(__version__)


def _manifest(folder: Path) -> dict[str, object]:
    try:
        found: dict[str, object] = json.loads((folder / "manifest.json").read_text())
    except (OSError, ValueError):
        return {}
    return found


def _translate(target: Path) -> list[Extension]:
    from mypyc.build import mypycify

    target.mkdir()
    config = target / "mypy.ini"
    config.write_text(MYPY_CONFIG)
    said = io.StringIO()
    paths = [str(source_of(module).relative_to(ROOT)) for module in MODULES]
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            made = mypycify(
                ["--config-file", str(config), *paths],
                target_dir=str(target),
                group_name=GROUP,
                multi_file=True,
                debug_level="0",
            )
        except SystemExit as error:
            lines = [line for line in said.getvalue().splitlines() if "error" in line] or [str(error)]
            raise BuildFailed("\n".join(lines)) from None
    return [Extension(each.name, tuple(each.sources), tuple(each.include_dirs)) for each in made]


def _compile(extensions: Iterable[Extension], compiler: str, work: Path) -> None:
    """Each C file to an object, then each extension to a library under `work / "lib"`."""
    headers = sysconfig.get_path("include")
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        jobs = []
        for extension in extensions:
            library = library_of(work / "lib", extension.name)
            library.parent.mkdir(parents=True, exist_ok=True)
            includes = [f"-I{folder}" for folder in (headers, *extension.include_dirs)]
            objects = [f"{work}/{extension.name}.{number}.o" for number in range(len(extension.sources))]
            compiled = [
                pool.submit(_run, [compiler, *FLAGS, *includes, "-c", source, "-o", made])
                for source, made in zip(extension.sources, objects, strict=True)
            ]
            jobs.append((compiled, [compiler, "-shared", *_link_flags(), *objects, "-o", str(library)]))
        for compiled, link in jobs:
            for each in compiled:
                each.result()
            _run(link)


def _link_flags() -> Sequence[str]:
    # Python's own symbols come from the process that loads the library.
    return ("-undefined", "dynamic_lookup") if sys.platform == "darwin" else ()


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)  # noqa: S603 - the C compiler
    if done.returncode:
        raise BuildFailed(f"{command[0]} failed:\n{done.stderr[-2000:]}")


def _put_in_place(made: Path, folder: Path, manifest: dict[str, object]) -> None:
    """The manifest last and the rename at once: what is found under the digest is whole."""
    (made / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    # Another process may have been as quick; its build of the same sources is as good.
    with contextlib.suppress(OSError):
        made.rename(folder)


def _forget_old_builds(newest: Path) -> None:
    found = sorted(builds().glob("*/manifest.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for manifest in found[BUILDS_KEPT:]:
        if manifest.parent != newest:
            shutil.rmtree(manifest.parent, ignore_errors=True)
