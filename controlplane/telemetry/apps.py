from __future__ import annotations

from django.apps import AppConfig


class TelemetryConfig(AppConfig):
    name = "controlplane.telemetry"

    def ready(self) -> None:
        from controlplane.fleet.poll_sinks import register_poll_sink
        from controlplane.telemetry.worker_rollups import record_polls

        register_poll_sink(record_polls)
