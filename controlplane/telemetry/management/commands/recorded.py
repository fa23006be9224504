"""`manage.py recorded export FILE`: what routers recorded, as a file for `python -m simulator what-if --trace FILE`."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from controlplane.telemetry.recorded import KEPT_FOR, LIMIT, write_recorded
from controlplane.telemetry.windows import Scope

AGE_MAX = timedelta(days=3650)
"""Nothing is older: what is looked for is bounded, so that times around it stay within the calendar."""


class Command(BaseCommand):
    help = "Write recorded traffic (lengths, times and keyed hashes; no text) to a file."

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        export = verbs.add_parser("export", help="write FILE (gzip by its suffix .gz)")
        export.add_argument("file", type=Path, metavar="FILE")
        for name in ("pool", "tenant", "namespace"):
            export.add_argument(f"--{name}", default="", help="of this one alone")
        export.add_argument("--since", default="", metavar="TIME", help="ISO 8601; default: all that is kept")
        export.add_argument("--until", default="", metavar="TIME", help="default: now")
        export.add_argument("--limit", type=int, default=LIMIT, help="the newest so many requests")

    def handle(self, *args: Any, **options: Any) -> None:
        now = timezone.now()
        from_, to = _time(options["since"], now - KEPT_FOR), _time(options["until"], now + timedelta(seconds=1))
        from_ = max(from_, now - AGE_MAX)
        if from_ >= to or options["limit"] < 1:
            raise CommandError("--since lies before --until, and --limit is at least 1")
        named = {name: options[name] for name in ("pool", "tenant", "namespace")}
        try:
            written = write_recorded(Scope(from_=from_, to=to, **named), options["file"], limit=options["limit"])
        except OSError as error:
            raise CommandError(f"{options['file']}: {error.strerror}") from None
        if not written:
            raise CommandError("nothing was recorded of these in this time")
        self.stdout.write(f"{written} requests")


def _time(text: str, default: datetime) -> datetime:
    """Raises CommandError."""
    if not text:
        return default
    try:
        found = parse_datetime(text)
    except ValueError:
        found = None
    if found is None:
        raise CommandError(f"{text!r} is no time in ISO 8601")
    return found if found.tzinfo else timezone.make_aware(found)
