"""Addresses of the REST API. Ids are those used everywhere: `acme`, `acme/support`, `llama-70b/w1`, `pool:big`."""

from __future__ import annotations

from django.urls import URLPattern, path, re_path

from controlplane.api import (
    audit,
    converters,
    keys,
    namespaces,
    pools,
    problems,
    schema,
    snapshots,
    tenants,
    watermarks,
)
from controlplane.api import workers as worker_views

converters.register()

urlpatterns: list[URLPattern] = [
    path("v1/tenants", tenants.TenantList.as_view(), name="api-tenants"),
    path("v1/tenants/<id:tenant>", tenants.TenantDetail.as_view(), name="api-tenant"),
    path("v1/tenants/<id:tenant>/status", tenants.TenantStatus.as_view(), name="api-tenant-status"),
    path("v1/namespaces", namespaces.NamespaceList.as_view(), name="api-namespaces"),
    path("v1/namespaces/<pair:namespace>", namespaces.NamespaceDetail.as_view(), name="api-namespace"),
    path("v1/namespaces/<pair:namespace>/status", namespaces.NamespaceStatus.as_view(), name="api-namespace-status"),
    path("v1/namespaces/<pair:namespace>/rotate", namespaces.NamespaceRotation.as_view(), name="api-namespace-rotate"),
    path("v1/keys", keys.KeyList.as_view(), name="api-keys"),
    path("v1/keys/<key:key_id>", keys.KeyDetail.as_view(), name="api-key"),
    path("v1/keys/<key:key_id>/revoke", keys.KeyRevoke.as_view(), name="api-key-revoke"),
    path("v1/pools", pools.PoolList.as_view(), name="api-pools"),
    path("v1/pools/<id:pool>", pools.PoolDetail.as_view(), name="api-pool"),
    path("v1/workers", worker_views.WorkerList.as_view(), name="api-workers"),
    path("v1/workers/<pair:worker>", worker_views.WorkerDetail.as_view(), name="api-worker"),
    path("v1/workers/<pair:worker>/state", worker_views.WorkerState.as_view(), name="api-worker-state"),
    path("v1/workers/<pair:worker>/test", worker_views.WorkerTest.as_view(), name="api-worker-test"),
    path("v1/watermark-policies", watermarks.WatermarkList.as_view(), name="api-watermarks"),
    path("v1/watermark-policies/<scope:scope>", watermarks.WatermarkDetail.as_view(), name="api-watermark"),
    path("v1/snapshots", snapshots.SnapshotList.as_view(), name="api-snapshots"),
    path("v1/snapshots/current", snapshots.CurrentSnapshot.as_view(), name="api-snapshot-current"),
    path("v1/snapshots/poll", snapshots.SnapshotPoll.as_view(), name="api-snapshot-poll"),
    path("v1/routers", snapshots.Routers.as_view(), name="api-routers"),
    path("v1/audit", audit.AuditList.as_view(), name="api-audit"),
    path("v1/schema", schema.SchemaDocument.as_view(), name="api-schema"),
    path("v1/docs", schema.DocsPage.as_view(), name="api-docs"),
    re_path(r"^", problems.not_found),
]
