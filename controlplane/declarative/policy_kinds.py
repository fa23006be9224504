"""Watermarks and routing policies as documents. What passes by itself, overrides and roll-outs, is in no file."""

from __future__ import annotations

from collections.abc import Callable

from controlplane.declarative.documents import Spec
from controlplane.declarative.kind import FLAG, NUMBER, OR_NONE, TEXT, WHOLE, Change, Field, Kind
from controlplane.policies.models import PolicyRevision
from controlplane.policies.services import clear_policy, set_policy
from controlplane.policies.variants import read_policies

WATERMARK_FIELDS = {"low": Field(NUMBER, 0.65), "high": Field(NUMBER, 0.85), "dwell_s": Field(NUMBER, 0)}
ROUTING_FIELDS = {
    "routing": Field(TEXT + OR_NONE),
    "virtual_nodes": Field(WHOLE + OR_NONE),
    "spill_outstanding": Field(WHOLE + OR_NONE),
    "priority": Field(WHOLE + OR_NONE),
    "ttft_slo_ms": Field(NUMBER + OR_NONE),
    "shed_over_slo": Field(FLAG + OR_NONE),
}


def _read_watermarks() -> dict[str, Spec]:
    standing, _ = read_policies()
    return {
        scope: {"low": mark.low, "high": mark.high, "dwell_s": mark.dwell_s}
        for scope, mark in standing.watermarks.items()
    }


def _read_routing() -> dict[str, Spec]:
    standing, _ = read_policies()
    return {scope: {name: values.get(name) for name in ROUTING_FIELDS} for scope, values in standing.routing.items()}


def _create(kind: str) -> Callable[[str, Spec, Change], None]:
    def put(name: str, wanted: Spec, change: Change) -> None:
        given = {key: value for key, value in wanted.items() if value is not None}
        set_policy(kind=kind, scope=name, values=given, actor=change.actor, reason=change.reason)

    return put


def _update(kind: str) -> Callable[[str, Spec, Spec, Change], None]:
    put = _create(kind)
    return lambda name, wanted, current, change: put(name, wanted, change)


def _remove(kind: str) -> Callable[[str, Change], None]:
    """The global watermark always exists: it goes back to the default values."""

    def take(name: str, change: Change) -> None:
        if name == "global":
            defaults = {key: known.default for key, known in WATERMARK_FIELDS.items()}
            set_policy(kind=kind, scope=name, values=defaults, actor=change.actor, reason=change.reason)
        else:
            clear_policy(kind=kind, scope=name, actor=change.actor, reason=change.reason)

    return take


def _kind(name: str, kind: str, fields: dict[str, Field], read: Callable[[], dict[str, Spec]]) -> Kind:
    return Kind(name, kind, fields, read, _create(kind), _update(kind), _remove(kind))


WATERMARKS = _kind("WatermarkPolicy", str(PolicyRevision.Kind.WATERMARK), WATERMARK_FIELDS, _read_watermarks)
ROUTING = _kind("RoutingPolicy", str(PolicyRevision.Kind.ROUTING), ROUTING_FIELDS, _read_routing)
