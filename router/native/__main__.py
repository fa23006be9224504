"""`python -m router.native`: compile the router's hot modules, or run any module with the compiled ones.

build          compile unless these very sources are compiled; without a C compiler one line says so, status 0
run MODULE …   `python -m MODULE …` with the compiled modules: tests, benchmarks
"""

from __future__ import annotations

import argparse
import runpy
import sys
import time

from router.native.build import BuildFailed, CannotCompile, build
from router.native.finder import NotCompiled, use_compiled
from router.native.modules import MODULES, build_folder


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m router.native", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("build")
    run = actions.add_parser("run")
    run.add_argument("module")
    run.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    return _build() if options.action == "build" else _run(options.module, options.arguments)


def _build() -> int:
    started_s, there = time.monotonic(), (build_folder() / "manifest.json").exists()
    try:
        build()
    except CannotCompile as error:
        print(f"router: stays interpreted, {error}", flush=True)
        return 0
    except BuildFailed as error:
        print(f"router: stays interpreted, its compilation failed: {error}", file=sys.stderr)
        return 1
    if not there:
        print(f"router: {len(MODULES)} modules compiled in {time.monotonic() - started_s:.0f} s", flush=True)
    return 0


def _run(module: str, arguments: list[str]) -> int:
    try:
        use_compiled("require")
    except NotCompiled as error:
        print(f"router: {error}", file=sys.stderr)
        return 2
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
