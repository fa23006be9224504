from __future__ import annotations

from django.apps import AppConfig


class SnapshotsConfig(AppConfig):
    name = "controlplane.snapshots"

    def ready(self) -> None:
        from controlplane.fleet.kv_events.owners import register_salt_names
        from controlplane.snapshots.salts import PublishedSalts

        register_salt_names(PublishedSalts())
