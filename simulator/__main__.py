"""`python -m simulator worker | traffic | placement | fleet | claims | goodput | import | what-if`; each has --help."""

from __future__ import annotations

import argparse
import logging
import sys

from router.native.finder import code_in_use, use_compiled

if __name__ == "__main__" and code_in_use() == "interpreted":
    # Before the first module that may be compiled is imported.
    use_compiled("auto")

from simulator import commands
from simulator.fleet.calibrate_command import add_calibrate
from simulator.fleet.claims_command import add_claims
from simulator.fleet.command import add_fleet
from simulator.fleet.goodput_command import add_goodput
from simulator.fleet.validate_command import add_validate
from simulator.fleet.what_if_command import add_what_if
from simulator.imports.command import add_import


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m simulator", description=__doc__)
    subcommands = parser.add_subparsers(dest="command", required=True)
    commands.add_worker(subcommands)
    commands.add_traffic(subcommands)
    commands.add_placement(subcommands)
    add_fleet(subcommands)
    add_claims(subcommands)
    add_goodput(subcommands)
    add_calibrate(subcommands)
    add_validate(subcommands)
    add_import(subcommands)
    add_what_if(subcommands)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        return int(options.run(options))
    except commands.UsageError as error:
        print(f"simulator: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
