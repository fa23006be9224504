from __future__ import annotations

from django.apps import AppConfig


class TelemetryConfig(AppConfig):
    name = "controlplane.telemetry"

    def ready(self) -> None:
        from controlplane.fleet.poll_sinks import register_poll_sink
        from controlplane.telemetry.recorded import store_recorded
        from controlplane.telemetry.shipment_sinks import register_shipment_sink
        from controlplane.telemetry.worker_rollups import record_polls

        register_poll_sink(record_polls)
        register_shipment_sink(store_recorded)
