from __future__ import annotations

from django.apps import AppConfig


class DeclarativeConfig(AppConfig):
    name = "controlplane.declarative"

    def ready(self) -> None:
        from controlplane.audit.guards import register_guard
        from controlplane.declarative.ownership import refuse_other_editors

        register_guard(refuse_other_editors)
