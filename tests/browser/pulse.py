"""`python -m tests.browser.pulse`: a second of traffic each second, announced as the ingester announces it."""

from __future__ import annotations

import os
import time

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
django.setup()

from dashboard import announce  # noqa: E402  (apps must be loaded first)
from tests.dashboard import story  # noqa: E402

FIRST_STEP = 1_000_000
"""Above every step that `story.tell` used: a shipment's seq only grows."""


def main() -> None:
    step = FIRST_STEP
    while True:
        story.pulse(story.utc_now(), step)
        announce.changed("telemetry")
        step += 1
        time.sleep(1)


if __name__ == "__main__":
    main()
