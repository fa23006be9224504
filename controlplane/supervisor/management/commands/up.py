"""`manage.py up`: everything on this machine, in one terminal."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.fleet.models import WorkerPool
from controlplane.supervisor.session import Options, run_session

TRAFFIC = ("mixed", "weka", "conversation")


class Command(BaseCommand):
    help = (
        "Starts Valkey, web server, Celery worker and beat, KV-event subscriber and router under one supervisor. "
        "With --demo also four simulated workers and replayed traffic. Ctrl-C ends everything."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--demo", action="store_true", help="seed tenants and run simulated workers and traffic")
        parser.add_argument(
            "--for", dest="headless_s", type=float, metavar="SECONDS", help="serve so long, then report"
        )
        parser.add_argument("--traffic", choices=TRAFFIC, default=TRAFFIC[0], help="which trace to replay")
        parser.add_argument("--no-traffic", action="store_true", help="workers of the demo without the traffic player")
        parser.add_argument("--routing", choices=WorkerPool.Routing.values, default="", help="routing of the demo pool")
        parser.add_argument("--report", type=Path, metavar="FILE", help="where --for writes its JSON report")

    def handle(self, *args: Any, **options: Any) -> None:  # Any: Django's own signature
        if options["headless_s"] is not None and options["headless_s"] <= 0:
            raise CommandError("--for takes a positive number of seconds")
        if options["report"] and options["headless_s"] is None:
            raise CommandError("--report needs --for SECONDS")
        if options["routing"] and not options["demo"]:
            raise CommandError("--routing sets the demo pool's routing and needs --demo")
        chosen = Options(
            demo=options["demo"],
            headless_s=options["headless_s"],
            traffic=options["traffic"],
            with_traffic=not options["no_traffic"],
            routing=options["routing"],
            report=options["report"],
        )
        sys.exit(asyncio.run(run_session(chosen, settings.CONFIG)))
