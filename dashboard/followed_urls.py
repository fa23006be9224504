"""Addresses of the pages on which things are followed up: alerts, webhooks, audit, checklist."""

from __future__ import annotations

from django.urls import URLPattern, path

from dashboard.views import alerts, audit, checklist, webhooks

FOLLOWED: list[URLPattern] = [
    path("alerts/", alerts.alerts, name="alerts"),
    path("alerts/act/", alerts.alert_act, name="alert-act"),
    path("alerts/add/", alerts.rule_add, name="alert-rule-add"),
    path("alerts/rules/<slug:slug>/", alerts.rule, name="alert-rule"),
    path("alerts/silences/", alerts.silence_create, name="silence-create"),
    path("alerts/silences/<int:silence_id>/end/", alerts.silence_end, name="silence-end"),
    path("alerts/<int:alert_id>/", alerts.alert, name="alert"),
    path("audit/", audit.audit, name="audit"),
    path("audit/verify/", audit.audit_verify, name="audit-verify"),
    path("audit/export.<slug:form>", audit.audit_export, name="audit-export"),
    path("checklist/", checklist.checklist, name="checklist"),
    path("webhooks/", webhooks.webhooks, name="webhooks"),
    path("webhooks/deliveries/<int:delivery_id>/again/", webhooks.redeliver, name="webhook-redeliver"),
    path("webhooks/given-up/<int:letter_id>/again/", webhooks.begin_anew, name="begin-anew"),
    path("webhooks/<slug:slug>/<slug:step>/", webhooks.webhook_step, name="webhook-step"),
]
