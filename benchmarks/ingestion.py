"""Telemetry records a second, from the stream's bytes to committed rows on PostgreSQL.

    python -m benchmarks.ingestion [--json] [--shipments 400] [--rows 50]

The ingester's own tick runs before a PostgreSQL and a Valkey of its own: shipments wait in the stream, are read,
checked, merged and stored in every width, and acknowledged. A record is one row of a shipment: what one second brought
of one tenant, namespace, worker and model. CPU is the ingester's; the database's is in the wall-clock time, and so is
whatever else runs on the machine. The bar is 5,000 records a second of a backlog.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from benchmarks.control_services import ROOT, services
from benchmarks.machine import about

RECORDS_PER_S_MIN = 5_000
ROUTERS = 4
NAMESPACES_OF_TENANT = 2
INSIDE = "inside"


@dataclass(frozen=True)
class Case:
    name: str
    tenants: int
    workers: int
    batch: int
    """Shipments that wait when the ingester looks."""
    bar: int | None = None


CASES = (
    Case("64 tenant × worker pairs, batches of 200", 8, 8, 200, RECORDS_PER_S_MIN),
    Case("12,800 tenant × worker pairs, batches of 200", 64, 200, 200, RECORDS_PER_S_MIN),
    Case("12,800 tenant × worker pairs, batches of 20", 64, 200, 20),
)


@dataclass(frozen=True)
class Result:
    case: str
    records: int
    wall_s: float
    cpu_s: float
    """Of the ingester's process."""
    stored: bool
    """Whether the rows' sums are those of what was sent."""

    @property
    def per_s(self) -> float:
        return self.records / self.wall_s if self.stored else 0.0

    @property
    def per_cpu_s(self) -> float:
        return self.records / self.cpu_s


def main() -> int:
    options = _options()
    if options.inside:
        print(json.dumps([asdict(result) for result in run_cases(options.shipments, options.rows)]))
        return 0
    results = measure(options.shipments, options.rows)
    if options.json:
        print(json.dumps({"measures": measures(results), "results": [asdict(each) for each in results],
                          "about": about()}, indent=1))  # fmt: skip
    else:
        print("\n".join(_line(each) for each in results) + f"\n(load average {os.getloadavg()[0]:.1f})")
    return 0 if all(each["ours"] >= each["bar"] for each in measures(results) if "bar" in each) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--shipments", type=int, default=400, help="of each case")
    parser.add_argument("--rows", type=int, default=50, help="of a shipment")
    parser.add_argument(f"--{INSIDE}", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _line(result: Result) -> str:
    return f"{result.case:46} {result.per_s:8,.0f} records/s {result.per_cpu_s:8,.0f} a CPU second" + (
        "" if result.stored else "  NOT ALL STORED"
    )


def measure(shipments: int, rows: int) -> list[Result]:
    """In a process that belongs to services of its own. Raises OSError or CalledProcessError."""
    arguments = ["--shipments", str(shipments), "--rows", str(rows), f"--{INSIDE}"]
    with services() as own:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.ingestion", *arguments], cwd=ROOT, env=own.environment, check=True,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
    return [Result(**found) for found in json.loads(done.stdout)]


def measures(results: Sequence[Result]) -> list[dict[str, Any]]:  # Any: JSON
    """As `benchmarks.alone` takes them."""
    found: list[dict[str, Any]] = []
    for case, result in zip(CASES, results, strict=True):
        bar = {} if case.bar is None else {"bar": case.bar, "at_least": True}
        found.append({"name": f"ingestion, {case.name}", "unit": "records/s", "ours": result.per_s, **bar})
        found.append({"name": f"ingestion, {case.name}, of CPU", "unit": "records/s", "ours": result.per_cpu_s})
    return found


def run_cases(shipments: int, rows: int) -> list[Result]:
    import django

    django.setup()
    from controlplane.fleet.valkey import connection

    results = []
    for number, case in enumerate(CASES):
        made = Made(case, boot=f"b{number}", rows=rows)
        connection().delete("tidemark:telemetry")
        # The statements, plans and rows of the present buckets: what a running ingester has behind it.
        _ingested(made, case.batch, case.batch)
        results.append(_ingested(made, shipments, case.batch))
    return results


def _ingested(made: Made, count: int, batch: int) -> Result:
    """Batches put into the stream and taken by the ingester's tick; only its time counts."""
    from controlplane.fleet.valkey import connection
    from controlplane.telemetry import tasks
    from router.contract.channels import TELEMETRY_STREAM

    before, records, wall_s, cpu_s = _stored(made), 0, 0.0, 0.0
    left = list(made.shipments(count))
    while left:
        waiting, left = left[:batch], left[batch:]
        pipeline = connection().pipeline(transaction=False)
        for entry in waiting:
            pipeline.xadd(TELEMETRY_STREAM, {"m": entry})
        pipeline.execute()
        began, began_cpu = time.perf_counter(), time.process_time()
        taken = 0
        while taken < len(waiting):
            taken += tasks.ingest()
        wall_s += time.perf_counter() - began
        cpu_s += time.process_time() - began_cpu
        records += len(waiting) * made.rows
    stored = _stored(made) - before == records
    return Result(made.case.name, records, round(wall_s, 3), round(cpu_s, 3), stored)


def _stored(made: Made) -> int:
    """Requests in the hour rows of the case: each record is of one."""
    from django.db.models import Sum

    from controlplane.telemetry.models import RequestRollup

    rows = RequestRollup.objects.filter(width_s=3600, model=made.model)
    return int(rows.aggregate(total=Sum("requests"))["total"] or 0)


class Made:
    """Shipments of ROUTERS routers, a second each, of rows that are spread evenly over tenants and workers."""

    def __init__(self, case: Case, *, boot: str, rows: int) -> None:
        self.case = case
        self.rows = rows
        self.model = f"model-{boot}"
        self._boot = boot
        self._seq = 0
        self._random = Random(boot)
        self._began_s = time.time() - 120

    def shipments(self, count: int) -> Iterator[bytes]:
        from router.contract.telemetry import RouterState, Shipment, encode_shipment

        for number in range(count):
            second = self._seq // ROUTERS
            yield encode_shipment(
                Shipment(
                    source=f"r{number % ROUTERS}", boot=self._boot, seq=second, at=self._began_s + second,
                    requests=[self._row() for _ in range(self.rows)],
                    router=RouterState(1, 0.5, 4, 1_000, 100_000),
                )
            )  # fmt: skip
            self._seq += 1

    def _row(self) -> Any:  # Any: RequestRow, which is not imported at the top
        from router.contract.telemetry import RequestRow

        chance = self._random
        tenant = f"t{chance.randrange(self.case.tenants):03d}"
        hit, prompt = chance.randrange(1_000), 1_000 + chance.randrange(3_000)
        ttft = {chance.randrange(80, 160): 1}
        return RequestRow(
            tenant=tenant, namespace=f"{tenant}/n{chance.randrange(NAMESPACES_OF_TENANT)}", pool="p",
            worker=f"p/w{chance.randrange(self.case.workers):03d}", model=self.model, requests=1,
            prompt_tokens=prompt, output_tokens=chance.randrange(400), usage_known=1, hit_tokens=hit, hit_known=1,
            hit_prompt_tokens=prompt, predicted_hit_tokens=hit, saved_prefill_ms=hit / 9, ttft_partial=ttft,
            duration={chance.randrange(160, 240): 1}, decision_us={chance.randrange(60, 110): 1}, slo_met=1,
            slo_known=1, isolation_checked=1, repeated_tokens=prompt - 200, best_hit_tokens=hit + 100,
            expected_hit_tokens=hit, routing_loss={"load": 100}, hit_size={chance.randrange(60, 120): 1},
            cohorts={chance.randrange(900): 1},
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
