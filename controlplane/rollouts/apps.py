from __future__ import annotations

from django.apps import AppConfig


class RolloutsConfig(AppConfig):
    name = "controlplane.rollouts"

    def ready(self) -> None:
        from controlplane.rollouts.samples import record_samples
        from controlplane.telemetry.shipment_sinks import register_shipment_sink

        register_shipment_sink(record_samples)
