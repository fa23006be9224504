"""The control plane: tenants, namespaces, policies and the fleet as a Django project; telemetry in, snapshots out."""

from controlplane.celery import app as celery_app

__all__ = ["celery_app"]
