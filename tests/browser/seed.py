"""`python -m tests.browser.seed`: users, a fleet and its last ten minutes, in the run folder's database."""

from __future__ import annotations

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
django.setup()

from controlplane.tenants.models import User  # noqa: E402  (apps must be loaded first)
from tests.dashboard import story  # noqa: E402


def main() -> None:
    now = story.utc_now()
    story.make_user("olga", role=User.Role.OPERATOR)
    story.make_user("vera", role=User.Role.VIEWER)
    story.make_fleet()
    story.tell(now, minutes=10)
    story.make_rollout(now)


if __name__ == "__main__":
    main()
