"""Addresses of the reports' pages."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, path

from dashboard.views import report_runs, reports

urlpatterns: list[URLPattern | URLResolver] = [
    path("reports/", reports.reports, name="reports"),
    path("reports/add/", reports.report_add, name="report-add"),
    path("reports/preview/", reports.report_preview, name="report-preview"),
    path("reports/<int:schedule_id>/", reports.report_edit, name="report-edit"),
    path("reports/<int:schedule_id>/delete/", reports.report_delete, name="report-delete"),
    path("reports/<int:schedule_id>/run/", reports.report_run_now, name="report-run-now"),
    path("reports/runs/<int:run_id>/", report_runs.report_run, name="report-run"),
    path("reports/runs/<int:run_id>/files/<slug:format>/", report_runs.report_file, name="report-file"),
    path("reports/runs/<int:run_id>/share/", report_runs.report_share, name="report-share"),
    path("reports/runs/<int:run_id>/<slug:step>/<int:subject_id>/", report_runs.report_step, name="report-step"),
    path("reports/shared/<str:token>/", report_runs.report_shared, name="report-shared"),
]
