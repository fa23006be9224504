"""Several processes send one call with one Idempotency-Key at once: it takes effect once, all get the same answer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SENDERS = 6

SCRIPT = f"""
import os, sys, time
import django
django.setup()
from django.conf import settings
settings.ALLOWED_HOSTS = ["testserver"]
from django.core.management import call_command
from django.db import connections
from rest_framework.test import APIClient
from controlplane.audit.models import AuditEntry
from controlplane.tenants.models import Tenant, User

def send():
    client = APIClient()
    client.force_authenticate(User.objects.get())
    for _ in range(200):
        answer = client.post("/api/v1/tenants", {{"id": "acme", "name": "Acme"}}, format="json",
                             headers={{"idempotency-key": "one"}})
        if answer.status_code != 409 or answer.json()["code"] != "in_flight":
            return answer
        time.sleep(0.05)

call_command("migrate", verbosity=0)
User.objects.create_user("olga", password="x", role="operator")
connections.close_all()
children = []
for _ in range({SENDERS}):
    readable, writable = os.pipe()
    if os.fork() == 0:
        try:
            answer = send()
            os.write(writable, f"{{answer.status_code}} {{answer.content.decode()}}".encode())
        finally:
            os._exit(0)
    os.close(writable)
    children.append(readable)
answers = [os.read(readable, 65536).decode() for readable in children]
assert len(set(answers)) == 1 and answers[0].startswith("201 "), answers
assert Tenant.objects.count() == 1
assert AuditEntry.objects.filter(action="tenant.create").count() == 1
"""


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def test_a_call_sent_by_several_at_once_takes_effect_once(request, run_dir: Path, kind: str) -> None:
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
