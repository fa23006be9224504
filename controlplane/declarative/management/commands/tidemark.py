"""`manage.py tidemark export | diff | apply | verify-audit | onboard`: the configuration as a file, the audit log
checked, a tenant made ready to serve."""

from __future__ import annotations

import getpass
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from controlplane.audit.exported import verify_lines
from controlplane.declarative import services
from controlplane.declarative.planning import Step, summary
from controlplane.errors import ControlError
from controlplane.onboarding import command as onboarding

FAILED = 2
"""Exit status of what could not be done; `diff` ends with 1 where there are differences."""


class Command(BaseCommand):
    help = "Export, compare and apply the configuration as YAML; verify the audit log."

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        export = verbs.add_parser("export", help="write the configuration to stdout")
        export.add_argument("--with-secrets", action="store_true", help="with keys and sealed generations")
        diff = verbs.add_parser("diff", help="what an apply would change; exit status 1 when something")
        apply = verbs.add_parser("apply", help="bring the configuration to what FILE says, in one transaction")
        for verb in (diff, apply):
            verb.add_argument("file", metavar="FILE", help="- = stdin")
            verb.add_argument("--prune", action="store_true", help="take away what FILE's managers manage and it lacks")
        apply.add_argument("--dry-run", action="store_true", help="do it, then take it back")
        apply.add_argument("--reason", default="", help="for the audit log")
        onboard = verbs.add_parser("onboard", help="make a tenant with namespace, limits and a key, printed this once")
        onboarding.add_arguments(onboard)
        verify = verbs.add_parser("verify-audit", help="exit status 1 naming the first bad entry")
        verify.add_argument("file", metavar="FILE", nargs="?", help="an exported audit.jsonl, instead of the database")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            getattr(self, f"_{options['verb'].replace('-', '_')}")(options)
        except ControlError as error:
            raise CommandError(error.message, returncode=FAILED) from error

    def _export(self, options: dict[str, Any]) -> None:
        self.stdout.write(services.export(with_secrets=options["with_secrets"]), ending="")

    def _diff(self, options: dict[str, Any]) -> None:
        text, name = _read(options["file"])
        steps = services.diff(text, file=name, prune=options["prune"])
        self._show(steps)
        if steps:
            sys.exit(1)

    def _apply(self, options: dict[str, Any]) -> None:
        text, name = _read(options["file"])
        steps = services.apply(
            text, file=name, actor=f"system:apply {_person()}", prune=options["prune"], dry_run=options["dry_run"],
            reason=options["reason"],
        )  # fmt: skip
        self._show(steps)
        if options["dry_run"] and steps:
            self.stdout.write("dry run: taken back")

    def _onboard(self, options: dict[str, Any]) -> None:
        """The key alone goes to stdout, so that it can be piped to where it is kept."""
        done = onboarding.run(options, actor=f"system:onboard {_person()}")
        verb = "would be made" if options["dry_run"] else "made"
        self.stderr.write(f"{verb}: {done.namespace.namespace_id}, key {done.issued.key.name}")
        if not options["dry_run"]:
            self.stdout.write(done.issued.text)

    def _verify_audit(self, options: dict[str, Any]) -> None:
        if options["file"] is None:
            call_command("verify_audit", stdout=self.stdout)
            return
        try:
            with Path(options["file"]).open("rb") as lines:
                verdict = verify_lines(lines)
        except OSError as error:
            raise CommandError(f"{options['file']}: {error}", returncode=FAILED) from None
        if verdict.bad_id is not None:
            raise CommandError(f"audit entry {verdict.bad_id}: {verdict.fault} ({verdict.entries} sound before it)")
        self.stdout.write(f"exported log whole: {verdict.entries} entries")

    def _show(self, steps: list[Step]) -> None:
        for step in steps:
            self.stdout.write("\n".join(step.lines()))
        self.stdout.write(summary(steps))


def _read(file: str) -> tuple[str, str]:
    """(text, name in messages). Raises CommandError."""
    try:
        return (sys.stdin.read(), "stdin") if file == "-" else (Path(file).read_text(encoding="utf-8"), file)
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{file}: {error}", returncode=FAILED) from None


def _person() -> str:
    """The operating system's name of who runs the command, for the audit log."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
