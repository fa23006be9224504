"""A Valkey that is not there unless a test asks: services push after commits, never into one of this machine."""

from __future__ import annotations

import pytest

from tests.control.conftest import ACTOR, alice, bob, charlie, no_valkey, pool, support  # noqa: F401 - fixtures


@pytest.fixture
def actor() -> str:
    return ACTOR
