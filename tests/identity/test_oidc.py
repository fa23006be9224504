"""OpenID Connect by configuration, in a process whose environment names an issuer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import django
django.setup()
from django.conf import settings
from django.core.management import call_command
from django.test import Client
from controlplane.tenants.models import User
from controlplane.tenants.member_services import grant_role
from tests.identity import issuer as issuers

settings.ALLOWED_HOSTS = ["testserver"]
call_command("migrate", verbosity=0)
User.objects.create_user("ines", password="a local account of that name", role="admin")
with issuers.running_issuer() as issuer:
    app = settings.SOCIALACCOUNT_PROVIDERS["openid_connect"]["APPS"][0]
    app["settings"]["server_url"] = issuer.url

    def sign_in(tamper=False):
        client = Client()
        page = client.get("/accounts/login/").content.decode()
        assert "Company account" in page and "/accounts/oidc/oidc/login/" in page, page
        begun = client.post("/accounts/oidc/oidc/login/?process=login")
        assert begun.status_code == 302 and begun["location"].startswith(issuer.url + "/authorize"), begun.content
        code, state = issuer.code_for(begun["location"])
        query = {"code": code, "state": "another" if tamper else state}
        return client, client.get("/accounts/oidc/oidc/login/callback/", query)

    client, done = sign_in()
    assert done.status_code == 302, (done.status_code, done.content[:2000])
    user = User.objects.get(socialaccount__uid="u-17")
    assert user.username != "ines" and not user.has_usable_password() and not user.is_staff
    # It holds nothing until a role is granted.
    assert client.get("/tenants/").status_code == 403
    assert client.get("/api/v1/pools").status_code == 403
    grant_role(actor="user:test", username=user.username, role="viewer")
    assert client.get("/api/v1/pools").status_code == 200
    again, done = sign_in()
    assert User.objects.count() == 2 and again.get("/api/v1/pools").status_code == 200
    stranger, refused = sign_in(tamper=True)
    assert stranger.get("/api/v1/pools").status_code == 401, refused.content
    assert "http://127.0.0.1:9" in client.get("/account/")["content-security-policy"]
print("fine")
"""


def test_whom_the_issuer_vouches_for_signs_in_and_holds_nothing_at_first(run_dir: Path) -> None:
    environment = {
        **os.environ,
        "TIDEMARK_RUN_DIR": str(run_dir),
        "TIDEMARK_DATABASE_URL": "",
        "TIDEMARK_REDIS_URL": f"unix://{run_dir}/none.sock",
        "TIDEMARK_LOG_LEVEL": "ERROR",
        "TIDEMARK_OIDC_ISSUER": "http://127.0.0.1:9",
        "TIDEMARK_OIDC_CLIENT_ID": "tidemark",
        "TIDEMARK_OIDC_CLIENT_SECRET": "issuer-secret",
        "TIDEMARK_OIDC_NAME": "Company account",
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
    }
    run = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(run, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=90)
    assert (done.returncode, done.stdout.strip()) == (0, "fine"), done.stderr


def test_without_an_issuer_there_is_no_such_door(client, db) -> None:
    assert "3rdparty" not in client.get("/accounts/login/").content.decode()
    assert client.get("/accounts/oidc/oidc/login/").status_code == 404
