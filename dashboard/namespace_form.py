"""A namespace's settings as fields of a form, there and back."""

from __future__ import annotations

from typing import Any

from controlplane.namespaces.models import PRIORITY_MAX, PRIORITY_MIN, CacheNamespace
from controlplane.namespaces.services import NamespaceSettings
from dashboard.forms import Form, number, whole

FIELDS = ("name", "on_stale", "unknown_fields", "ttft_slo_ms", "shed_over_slo", "priority")
"""Beside `model_names`, of which a form has any number."""
OPERATORS_FIELDS = ("priority",)
"""By which one tenant would take from others: not for its own people."""


def stored(row: CacheNamespace) -> dict[str, str]:
    return {
        "name": row.name,
        "on_stale": row.on_stale,
        "unknown_fields": row.unknown_fields,
        "ttft_slo_ms": "" if row.ttft_slo_ms is None else f"{row.ttft_slo_ms:g}",
        "shed_over_slo": "on" if row.shed_over_slo else "",
        "priority": str(row.priority),
        "model_names": "\n".join(row.model_names),
        "revision": str(row.revision),
    }


def settings_of(form: Form, may_limit: bool) -> NamespaceSettings:
    """What the service takes. Raises Invalid for what is no number."""
    values = form.values
    settings = NamespaceSettings(
        name=values["name"],
        on_stale=values["on_stale"],
        unknown_fields=values["unknown_fields"],
        ttft_slo_ms=number(values["ttft_slo_ms"], "ttft_slo_ms"),
        shed_over_slo=bool(values["shed_over_slo"]),
        model_names=[name for name in values["model_names"].split("\n") if name],
    )
    if may_limit:
        settings["priority"] = whole(values["priority"], "priority") or 0
    return settings


def choices() -> dict[str, Any]:  # Any: a template's context
    return {
        "on_stale_choices": CacheNamespace.OnStale.choices,
        "unknown_fields_choices": CacheNamespace.UnknownFields.choices,
        "priorities": [str(step) for step in range(PRIORITY_MIN, PRIORITY_MAX + 1)],
    }
