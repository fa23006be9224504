"""Several processes change and publish at once: one chain, one snapshot a version, nothing lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WRITERS = 3
CHANGES_EACH = 10

SCRIPT = f"""
import os
import django
django.setup()
from django.conf import settings
from django.core.management import call_command
from django.db import connections
from controlplane.audit.verification import verify_chain
from controlplane.errors import Conflict
from controlplane.fleet.services import create_pool
from controlplane.policies.services import set_watermark
from controlplane.snapshots.models import PublishedSnapshot
from controlplane.snapshots.selectors import current, publication_due
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import create_tenant
from router.contract.snapshot import open_document

def write(writer):
    for number in range({CHANGES_EACH}):
        create_tenant(actor=f"user:{{writer}}", slug=f"t{{writer}}-{{number}}", name="T")
        set_watermark(actor=f"user:{{writer}}", scope="global", low=0.1 + number / 100, high=0.9 - writer / 100)
    try:
        create_tenant(actor=f"user:{{writer}}", slug="shared", name="Shared")
    except Conflict:
        pass

call_command("migrate", verbosity=0)
create_pool(actor="user:test", slug="llama", models=["m"])
connections.close_all()
children = []
for writer in range({WRITERS}):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            write(writer)
            code = 0
        finally:
            os._exit(code)
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * {WRITERS}

verdict = verify_chain()
assert verdict.bad_id is None, verdict
assert verdict.entries > {WRITERS * CHANGES_EACH}
rows = list(PublishedSnapshot.objects.order_by("version").values_list("version", "through_audit_id"))
versions = [version for version, _ in rows]
assert versions == list(range(versions[0], versions[0] + len(rows))), rows
assert all(earlier < later for (_, earlier), (_, later) in zip(rows, rows[1:])), rows
assert not publication_due()
document, snapshot = open_document(current().document.encode(), settings.FLEET_KEY)
assert document.version == rows[-1][0]
assert len(snapshot.tenants) == Tenant.objects.count() == {WRITERS * CHANGES_EACH + 1}
"""


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def test_concurrent_writers_share_one_chain_and_publish_in_order(request, run_dir: Path, kind: str) -> None:
    environment = {
        **os.environ,
        "TIDEMARK_RUN_DIR": str(run_dir),
        "TIDEMARK_DATABASE_URL": "" if kind == "sqlite" else request.getfixturevalue("postgres_url"),
        "TIDEMARK_REDIS_URL": f"unix://{run_dir}/none.sock",
        "TIDEMARK_LOG_LEVEL": "ERROR",
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
    }
    run = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(run, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=90)
    assert done.returncode == 0, done.stderr
