from __future__ import annotations

from django.apps import AppConfig


class IsolationConfig(AppConfig):
    name = "controlplane.isolation"

    def ready(self) -> None:
        from controlplane.isolation.services import record_violations
        from controlplane.telemetry.shipment_sinks import register_shipment_sink

        register_shipment_sink(record_violations)
