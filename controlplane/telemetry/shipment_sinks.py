"""Who hears of applied shipments. Apps above `telemetry` register here when loaded, since it may not import them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from router.contract.telemetry import Shipment

ShipmentSink = Callable[[Sequence[Shipment]], None]
"""Called inside the ingest transaction with shipments that were not applied before."""

_sinks: list[ShipmentSink] = []


def register_shipment_sink(sink: ShipmentSink) -> None:
    if sink not in _sinks:
        _sinks.append(sink)


def hand_over(shipments: Sequence[Shipment]) -> None:
    for sink in _sinks:
        sink(shipments)
