"""docs/identity.md shows what each role carries, as the code has it."""

from __future__ import annotations

import re
from pathlib import Path

from controlplane.tenants.roles import IN_A_TENANT, ROLES, Capability, Role

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "identity.md"
ROW = re.compile(r"^\| `([a-z]+\.[a-z]+)` \|(.*)\|$", re.MULTILINE)


def test_the_table_of_roles_is_the_code() -> None:
    written = {
        name: tuple(cell.strip() == "yes" for cell in cells.split("|"))
        for name, cells in ROW.findall(DOCUMENT.read_text())
    }
    assert written == {
        item.value: (*(item in ROLES[role] for role in Role), item in IN_A_TENANT) for item in Capability
    }
