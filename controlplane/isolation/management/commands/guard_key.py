"""`manage.py guard_key POOL`: the key for the worker guard of a pool's workers."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.fleet.guarding import guard_key_hex
from controlplane.fleet.models import WorkerPool


class Command(BaseCommand):
    help = "Print a pool's guard key: 64 hexadecimal digits, a secret, for TIDEMARK_GUARD_KEY_FILE on its workers."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("pool", help="slug of the pool")

    def handle(self, *args: Any, **options: Any) -> None:
        if not WorkerPool.objects.filter(slug=options["pool"]).exists():
            raise CommandError(f"There is no pool {options['pool']!r}.")
        self.stdout.write(guard_key_hex(options["pool"]))
