"""Telling open dashboards of a change never costs the change."""

from __future__ import annotations

import asyncio
import time

import pytest

from dashboard import announce


class _Layer:
    def __init__(self, fault: str) -> None:
        self._fault = fault

    async def group_send(self, group: str, message: dict[str, object]) -> None:
        if self._fault == "refused":
            raise ConnectionRefusedError("no server")
        await asyncio.sleep(60)


@pytest.mark.parametrize("fault", ["refused", "silent"])
def test_it_goes_on_without_a_channel_layer(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr(announce, "TOLD_WITHIN_S", 0.1)
    monkeypatch.setattr(announce, "get_channel_layer", lambda: _Layer(fault))
    started_at = time.monotonic()
    announce.changed("policy")
    assert time.monotonic() - started_at < 2
