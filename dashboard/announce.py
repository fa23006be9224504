"""Tell open dashboards at once that somebody changed something; without a channel layer they see it a little later."""

from __future__ import annotations

import logging
import time

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer

from dashboard import fragments
from router.contract.channels import DASHBOARD_GROUP

log = logging.getLogger(__name__)


def changed(what: str) -> None:
    """Never raises: the change itself is stored already."""
    fragments.forget()
    layer = get_channel_layer()
    if layer is None:
        return
    message = {"type": "data.fresh", "what": what, "at": time.time()}
    try:
        async_to_sync(layer.group_send)(DASHBOARD_GROUP, message)
    except Exception as error:
        # Which error depends on the layer's backend; dashboards look again within a few seconds anyway.
        log.warning("dashboards were not told of a change: %s", type(error).__name__)
