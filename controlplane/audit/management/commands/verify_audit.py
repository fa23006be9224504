"""`manage.py verify_audit`: exit 0 when the audit log is whole, else 1 naming the first bad entry."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from controlplane.audit.services import lock_chain
from controlplane.audit.verification import verify_chain


class Command(BaseCommand):
    help = "Verify the hash chain of the audit log and the signature of its end."

    def handle(self, *args: Any, **options: Any) -> None:
        with transaction.atomic():
            lock_chain()
            verdict = verify_chain()
        if verdict.bad_id is not None:
            raise CommandError(f"audit entry {verdict.bad_id}: {verdict.fault} ({verdict.entries} sound before it)")
        self.stdout.write(f"audit log whole: {verdict.entries} entries")
