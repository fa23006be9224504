"""docs/configuration.md names every variable with its real default, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import AliasChoices
from pydantic_settings import BaseSettings

from controlplane.config import Config
from controlplane.supervisor.config import Addresses
from router.config import Settings

DOCUMENT = Path(__file__).resolve().parent.parent.parent / "docs" / "configuration.md"
ROW = re.compile(r"^\| `(\w+)` \| (.*?) \|", re.MULTILINE)
IN_WORDS = {"TIDEMARK_RUN_DIR", "TIDEMARK_SECRET_KEY", "TIDEMARK_FLEET_KEY", "TIDEMARK_ROUTER_ID"}
"""Their default is described, since it is made at run time."""


def documented(section: str) -> dict[str, str]:
    """Variable → default as written, of one section."""
    text = DOCUMENT.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    return {name: default.strip("`") for name, default in ROW.findall(text)}


def real(settings: type[BaseSettings]) -> dict[str, str]:
    return {_variable(name, settings): _as_text(settings, name) for name in settings.model_fields}


def _variable(name: str, settings: type[BaseSettings]) -> str:
    alias = settings.model_fields[name].validation_alias
    return str(alias.choices[0]) if isinstance(alias, AliasChoices) else f"TIDEMARK_{name.upper()}"


def _as_text(settings: type[BaseSettings], name: str) -> str:
    default = settings.model_fields[name].default
    if isinstance(default, list):
        return ",".join(default) or "empty"
    if isinstance(default, bool):
        return str(default).lower()
    return "empty" if default in ("", None) else str(default)


@pytest.mark.parametrize(
    ("section", "settings", "elsewhere"),
    [
        ("Control plane", Config, set()),
        ("Router", Settings, set()),
        ("`manage.py up`", Addresses, {_variable(name, Settings) for name in Settings.model_fields}),
    ],
)
def test_each_table_is_the_code(section: str, settings: type[BaseSettings], elsewhere: set[str]) -> None:
    expected = {name: default for name, default in real(settings).items() if name not in elsewhere}
    written = documented(section)
    assert written.keys() == expected.keys()
    assert {name: default for name, default in written.items() if name not in IN_WORDS} == {
        name: default for name, default in expected.items() if name not in IN_WORDS
    }
