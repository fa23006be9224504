"""Addresses of the dashboard."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, path

from dashboard.views import fleet, isolation, policies, requests, tenants, workers

urlpatterns: list[URLPattern | URLResolver] = [
    path("", fleet.fleet, name="fleet"),
    path("fragments/<slug:name>/", fleet.page_fragments, name="page-fragments"),
    path("fragments/panel/<slug:name>/", fleet.panel_fragment, name="panel-fragment"),
    path("charts/<slug:name>/table/", fleet.chart_table, name="chart-table"),
    path("charts/<slug:name>.csv", fleet.chart_csv, name="chart-csv"),
    path("workers/", workers.workers, name="workers"),
    path("workers/add/", workers.worker_add, name="worker-add"),
    path("workers/<path:worker_id>/test/", workers.worker_test, name="worker-test"),
    path("workers/<path:worker_id>/state/<slug:state>/", workers.worker_state, name="worker-state"),
    path("workers/<path:worker_id>/", workers.worker, name="worker"),
    path("policies/", policies.policies, name="policies"),
    path("policies/<slug:kind>/", policies.policy, name="policy"),
    path("policies/<slug:kind>/<path:name>/", policies.policy, name="policy-of"),
    path("isolation/", isolation.isolation, name="isolation"),
    path("isolation/<int:violation_id>/acknowledge/", isolation.acknowledge, name="acknowledge"),
    path("requests/", requests.requests, name="requests"),
    path("requests/<slug:request_id>/", requests.decision, name="decision"),
    path("tenants/", tenants.tenants, name="tenants"),
]
