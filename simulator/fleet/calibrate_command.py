"""`python -m simulator calibrate`: scrapes or a report to a profile that `--profile FILE` takes."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import msgspec

from simulator.fleet.calibrate import UnknownError, from_intervals, from_report
from simulator.fleet.calibrate_metrics import Interval, MetricsError, Page, intervals, read_page
from simulator.fleet.calibrated_profile import ProfileFile, write_profile
from simulator.fleet.hardware import PROFILES

SECONDS_DEFAULT = 60.0
SCRAPE_TIMEOUT_S = 10.0
PAGE_BYTES_MAX = 16 * 1024 * 1024
"""A worker's page has 60 to 80 KB; one with many engines some times that."""


def add_calibrate(subcommands: Any) -> None:  # argparse names the type of add_subparsers() only privately
    parser = subcommands.add_parser("calibrate", help="a worker's profile from its metrics or from a report")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--metrics", nargs="+", metavar="URL|FILE",
        help="/metrics of workers of one kind, scraped twice; or two and more saved pages of one worker, oldest first",
    )  # fmt: skip
    source.add_argument("--report", type=Path, metavar="FILE", help="a report of the control plane, as JSON")
    parser.add_argument("--pool", default="", help="of the report")
    parser.add_argument("--seconds", type=float, default=SECONDS_DEFAULT, help="between the two scrapes of a URL")
    parser.add_argument("--like", choices=PROFILES, help="what was not measured is this one's; default the nearest")
    parser.add_argument("--name", default="measured")
    parser.add_argument("--batch-tokens", type=int, help="the worker's --max-num-batched-tokens")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the profile; it is shown without")
    parser.set_defaults(run=lambda options: _run(parser, options))


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    if (options.batch_tokens is not None and options.batch_tokens < 1) or options.seconds <= 0:
        parser.error("--batch-tokens and --seconds must be positive")
    like = PROFILES[options.like] if options.like else None
    try:
        if options.report:
            file = from_report(_json(options.report), pool=options.pool, name=options.name, like=like)
        else:
            found = _intervals(parser, options.metrics, options.seconds)
            file = from_intervals(found, name=options.name, like=like, batch_tokens=options.batch_tokens)
    except (MetricsError, UnknownError) as error:
        print(f"unknown: {error}", file=sys.stderr)
        return 1
    except (OSError, httpx.HTTPError, msgspec.DecodeError) as error:
        print(f"calibrate: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print(_text(file))
    if options.out:
        write_profile(options.out, file)
    return 0


def _intervals(parser: argparse.ArgumentParser, sources: list[str], seconds: float) -> list[Interval]:
    urls = [source for source in sources if source.startswith(("http://", "https://"))]
    if urls and len(urls) != len(sources):
        parser.error("--metrics takes URLs or files, not both")
    if urls:
        before = [_scrape(url) for url in urls]
        time.sleep(seconds)
        return [each for url, first in zip(urls, before, strict=True) for each in intervals([first, _scrape(url)])]
    if len(sources) < 2:
        parser.error("--metrics takes two saved pages at least, oldest first: one page holds no interval")
    return intervals([read_page(Path(source).read_text()) for source in sources])


def _scrape(url: str) -> Page:
    url = url if url.rstrip("/").endswith("/metrics") else f"{url.rstrip('/')}/metrics"
    answer = httpx.get(url, timeout=SCRAPE_TIMEOUT_S, trust_env=False)
    answer.raise_for_status()
    if len(answer.content) > PAGE_BYTES_MAX:
        raise MetricsError(f"{url} answers with more than {PAGE_BYTES_MAX} bytes")
    return read_page(answer.text)


def _json(path: Path) -> Any:
    return msgspec.json.decode(path.read_bytes())


def _text(file: ProfileFile) -> str:
    lines = [f"{file.profile.name}, from {file.source}; what is not measured is {file.like}'s"]
    for field, value in asdict(file.profile).items():
        if field != "name":
            shown = f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
            lines.append(f"  {field:28} {shown:>16}  {'measured' if field in file.measured else 'assumed'}")
    if file.request_overhead_s is not None:
        lines.append(f"  {'request_overhead_s':28} {file.request_overhead_s:>16.6g}  measured")
    return "\n".join([*lines, *(f"  note: {note}" for note in file.notes)])
