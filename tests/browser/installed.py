"""A whole installation for journeys: every role of `manage.py up`, four simulated workers, no traffic but a test's own.

One for the whole session: journeys make tenants, pools and keys of their own, and leave the demo's as they found them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page

from tests.dashboard.story import PASSWORD
from tests.installation import Installation, Operator

MODEL = "sim-llama"
PEOPLE = {
    "olga": ("operator", ""),
    "vera": ("viewer", ""),
    "sam": ("security", ""),
    "alice": ("tenant_admin", "acme"),
    "bob": ("viewer", "acme"),
    "charlie": ("tenant_admin", "globex"),
}
"""User → role, and the tenant it is held in ("" = the whole fleet). The administrator is `admin`."""
_MAKE_PEOPLE = f"""
from controlplane.tenants.member_services import grant_role
from controlplane.tenants.models import User
for name, (role, tenant) in {PEOPLE!r}.items():
    if not User.objects.filter(username=name).exists():
        User.objects.create_user(name, password={PASSWORD!r})
    if role:
        grant_role(actor="system:test", username=name, role=role, tenant=tenant)
"""


@dataclass
class Installed:
    installation: Installation

    def address(self, path: str) -> str:
        return f"{self.installation.web}{path}"

    @cached_property
    def operator(self) -> Operator:
        """The administrator's REST client."""
        return Operator(self.installation)

    def python(self, code: str) -> Any:
        """As `Installation.python`: code inside the control plane; what it assigns to `result`."""
        return self.installation.python(code)

    def state(self) -> dict[str, Any]:
        """What the router says of itself on its admin port."""
        return dict(json.loads(self.installation.get(f"{self.installation.admin}/state")))

    def served_version(self) -> int:
        return int(self.state()["snapshot"]["version"])

    def demo_key(self) -> str:
        """The key of acme/support."""
        return (self.installation.run_dir / "demo-key").read_text().strip()

    def ask(self, key: str, text: str = "hello", *, model: str = MODEL, tokens: int = 4) -> httpx.Response:
        """One chat request through the router."""
        body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": tokens}
        url, headers = f"{self.installation.router}/v1/chat/completions", {"authorization": f"Bearer {key}"}
        return httpx.post(url, json=body, headers=headers, timeout=20, trust_env=False)

    def password(self, user: str) -> str:
        return (self.installation.run_dir / "admin-password").read_text().strip() if user == "admin" else PASSWORD

    @contextlib.contextmanager
    def signed_in(
        self, browser: Browser, user: str = "admin", *, width: int = 1440, strict: bool = True
    ) -> Iterator[Page]:
        """A page of `user`; any error on its console fails the test at the end, where it is `strict`."""
        context = browser.new_context(
            viewport={"width": width, "height": 900}, base_url=self.installation.web, timezone_id="UTC"
        )
        page, faults = context.new_page(), list[str]()
        page.set_default_timeout(60_000)
        sign_in(page, user, self.password(user))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: faults.append(message.text) if _is_fault(message) else None)
        try:
            yield page
            assert not (strict and faults), faults
        finally:
            context.close()


def sign_in(page: Page, user: str, password: str) -> None:
    """Through the form, on a page whose context knows the site's address."""
    page.goto("/accounts/login/")
    page.fill("#id_login", user)
    page.fill("#id_password", password)
    page.click("button:has-text('Sign in')")
    page.wait_for_selector(".user-menu")
    page.wait_for_load_state("load")


def _is_fault(message: ConsoleMessage) -> bool:
    """Errors, but for the browser's own note of a form or an address that was refused in words."""
    return message.type == "error" and "the server responded with a status of 4" not in message.text


@contextlib.contextmanager
def installation_for_browsers(
    folder: Path, *arguments: str, environment: dict[str, str] | None = None
) -> Iterator[Installed]:
    """`manage.py up` with these arguments in a folder of its own, serving."""
    installation = Installation(folder)
    try:
        installation.start(*arguments, environment=environment)
        installation.wait_until_serving()
        yield Installed(installation)
    finally:
        installation.end()


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    with installation_for_browsers(tmp_path_factory.mktemp("installed"), "--demo", "--no-traffic") as running:
        running.python(_MAKE_PEOPLE)
        yield running
