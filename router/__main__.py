"""`python -m router`: one router process, configured by the environment."""

from __future__ import annotations

import argparse
import asyncio
import sys

import uvloop

from router.config import ENV_PREFIX, ConfigError, Settings, load_settings
from router.logs import configure_logs
from router.native.finder import NotCompiled, use_compiled

USAGE_ERROR = 2


def main() -> int:
    """0 after an orderly end, 2 when a setting is wrong or a port is taken."""
    argparse.ArgumentParser(
        prog="python -m router",
        description="Tidemark's router: an OpenAI-compatible endpoint in front of vLLM workers.",
        epilog="Settings come from the environment:\n" + _settings_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    try:
        settings = load_settings()
    except ConfigError as error:
        print(f"router: {error}", file=sys.stderr)
        return USAGE_ERROR
    configure_logs(settings.log_level)
    try:
        use_compiled(settings.router_compiled)
    except NotCompiled as error:
        print(f"router: {error}", file=sys.stderr)
        return USAGE_ERROR
    return _run(settings)


def _run(settings: Settings) -> int:
    # Imported here: the compiled modules have to be found before the first of them is imported.
    from router.runtime import PortInUse, Runtime, install_signals

    async def serve() -> None:
        stop = asyncio.Event()
        install_signals(stop)
        await Runtime(settings).run(stop)

    try:
        uvloop.run(serve())
    except PortInUse as error:
        print(f"router: {error}", file=sys.stderr)
        return USAGE_ERROR
    return 0


def _settings_help() -> str:
    lines = []
    for name, field in Settings.model_fields.items():
        default = field.default if field.default_factory is None else "this host's name"
        shown = "" if default is None or default == "" else f"  (default {default})"
        lines.append(f"  {ENV_PREFIX}{name.upper()}{shown}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
