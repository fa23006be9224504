"""The onboarding wizard's fields: which step each stands on, and what the service takes of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.utils import timezone

from controlplane.errors import ControlError, FieldError, Invalid
from controlplane.namespaces.models import CacheNamespace
from controlplane.namespaces.services import NamespaceSettings
from controlplane.onboarding.services import SharingWish
from controlplane.policies.watermarks import WatermarkValues
from controlplane.tenants.services import TenantSettings
from dashboard.forms import FORM, Form, number, whole

STEPS = {
    "tenant": ("tenant_id", "tenant_name"),
    "namespace": (
        "slug", "namespace_name", "isolation", "project", "trust_group", "sharing_reason", "on_stale", "model_names",
    ),
    "limits": (
        "prefill_tokens_per_s", "prefill_burst_tokens", "ttft_slo_ms", "shed_over_slo", "priority", "low", "high",
    ),
    "review": ("key_name", "key_expires"),
}  # fmt: skip
"""Step → its fields, in the order in which they are asked."""
TITLES = {"tenant": "Tenant", "namespace": "Namespace and isolation", "limits": "Limits and policy", "review": "Review"}
FIELDS = tuple(name for names in STEPS.values() for name in names if name != "model_names")
DEFAULTS = {"isolation": "private", "on_stale": "serve", "priority": "0", "key_name": "app", "key_expires": "90"}
EXPIRIES = {"": "never", "30": "in 30 days", "90": "in 90 days", "365": "in a year"}
_STEP_OF = {name: step for step, names in STEPS.items() for name in names}
_FIELD_OF = {
    ("tenant", "slug"): "tenant_id",
    ("tenant", "name"): "tenant_name",
    ("namespace", "name"): "namespace_name",
    ("key", "name"): "key_name",
    ("key", "expires_at"): "key_expires",
    ("sharing", "reason"): "sharing_reason",
}
"""(part, field of its service) → field of the form, where their names differ."""


def arguments(values: Mapping[str, str]) -> dict[str, Any]:  # Any: keyword arguments of several types
    """Of `onboard_tenant`. Raises Invalid naming the form's field."""
    return {
        "tenant": values["tenant_id"],
        "tenant_settings": TenantSettings(
            name=values["tenant_name"],
            prefill_tokens_per_s=number(values["prefill_tokens_per_s"], "prefill_tokens_per_s"),
            prefill_burst_tokens=whole(values["prefill_burst_tokens"], "prefill_burst_tokens"),
        ),
        "namespace": values["slug"],
        "namespace_settings": NamespaceSettings(
            name=values["namespace_name"],
            on_stale=values["on_stale"],
            model_names=[name for name in values["model_names"].split("\n") if name],
            ttft_slo_ms=number(values["ttft_slo_ms"], "ttft_slo_ms"),
            shed_over_slo=bool(values["shed_over_slo"]),
            priority=whole(values["priority"], "priority") or 0,
        ),
        "key_name": values["key_name"],
        "key_expires_at": _expires_at(values["key_expires"]),
        "watermark": _watermark(values),
        "sharing": _sharing(values),
    }


def _expires_at(days: str) -> Any:  # Any: a time or None
    if days not in EXPIRIES:
        raise Invalid.field("key_expires", "Choose when the key expires.")
    return timezone.now() + timedelta(days=int(days)) if days else None


def _watermark(values: Mapping[str, str]) -> WatermarkValues | None:
    """Percent as typed → shares; None when both are left empty."""
    low, high = (number(values[name].removesuffix("%").strip(), name) for name in ("low", "high"))
    if low is None and high is None:
        return None
    if low is None or high is None:
        raise Invalid.field("low" if low is None else "high", "Give both watermarks, or neither.")
    return WatermarkValues(low=low / 100, high=high / 100, dwell_s=0.0)


def _sharing(values: Mapping[str, str]) -> SharingWish | None:
    if values["isolation"] in ("", CacheNamespace.Isolation.PRIVATE):
        return None
    return SharingWish(values["isolation"], values["project"], values["trust_group"], values["sharing_reason"])


def refused(form: Form, error: ControlError) -> Form:
    """The form with the error at its field."""
    found: dict[str, list[str]] = {}
    for fault in error.errors or [FieldError(field="", message=error.message)]:
        field = fault["field"]
        name = _FIELD_OF.get((error.part, field), field)
        found.setdefault(name if name in _STEP_OF else FORM, []).append(fault["message"])
    return Form(form.values, found)


def step_of(form: Form) -> str:
    """The first step with an error; the last one for errors that belong to no field; "" without any."""
    steps = [_STEP_OF.get(name, "review") for name in form.errors]
    return min(steps, key=list(STEPS).index) if steps else ""
