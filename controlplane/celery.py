"""The Celery application. The beat schedule is static and in UTC; it is settings.CELERY_BEAT_SCHEDULE."""

from __future__ import annotations

import os
import signal
import warnings
from typing import Any

from celery import Celery
from celery.platforms import SecurityWarning
from celery.signals import worker_process_init

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

# It warns root of pickled messages; ours are JSON (S20).
warnings.filterwarnings("ignore", category=SecurityWarning)

app = Celery("tidemark")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@worker_process_init.connect
def end_with_the_worker(**_: Any) -> None:  # Any: Celery's own signature
    """A pool process whose worker is killed must not live on, holding connections and taking memory."""
    from controlplane.supervisor.processes import die_with_parent

    die_with_parent(signal.SIGKILL, os.getppid())
