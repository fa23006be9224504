"""Results of finished runs in a file of JSON lines, so that a long sweep goes on where it was ended.

A line is a case and its result, with the digest of the sources that made it: results of other sources are not taken.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from functools import cache
from pathlib import Path

import msgspec

import router.core
import simulator.fleet
from simulator.fleet.measure import RunResult
from simulator.fleet.sweep import Case


class KeptRuns:
    """The file may be absent. A last line that was cut off is passed over and run again."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[Case, RunResult]:
        found: dict[Case, RunResult] = {}
        for line in self._path.read_bytes().splitlines() if self._path.exists() else ():
            try:
                kept = msgspec.json.decode(line)
                if kept["sources"] == sources_digest():
                    found[msgspec.convert(kept["case"], Case)] = RunResult(**kept["result"])
            except (msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError):
                continue
        return found

    def add(self, case: Case, result: RunResult) -> None:
        line = {"sources": sources_digest(), "case": asdict(case), "result": result.as_dict()}
        with self._path.open("ab") as out:
            out.write(msgspec.json.encode(line) + b"\n")


@cache
def sources_digest() -> str:
    """Of the routing core and the simulation: whatever changes a result changes it."""
    digest = hashlib.blake2b(digest_size=8)
    for package in (router.core, simulator.fleet):
        for folder in package.__path__:
            for path in sorted(Path(folder).rglob("*.py")):
                digest.update(path.read_bytes())
    return digest.hexdigest()
