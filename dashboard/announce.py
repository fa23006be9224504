"""Tell open dashboards at once that somebody changed something; without a channel layer they see it a little later."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer

from dashboard import fragments
from router.contract.channels import DASHBOARD_GROUP

log = logging.getLogger(__name__)

TOLD_WITHIN_S = 1.0
"""A channel layer that accepts connections and does not answer must not hold the operator's change."""


def changed(what: str) -> None:
    """Never raises: the change itself is stored already."""
    fragments.forget()
    layer = get_channel_layer()
    if layer is None:
        return
    message = {"type": "data.fresh", "what": what, "at": time.time()}
    try:
        async_to_sync(_send)(layer, message)
    except Exception as error:
        # Which error depends on the layer's backend; dashboards look again within a few seconds anyway.
        log.warning("dashboards were not told of a change: %s", type(error).__name__)


async def _send(layer: Any, message: dict[str, Any]) -> None:  # Any: channels ships no types
    await asyncio.wait_for(layer.group_send(DASHBOARD_GROUP, message), TOLD_WITHIN_S)
