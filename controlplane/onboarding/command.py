"""Onboarding from the command line: `manage.py tidemark onboard acme support`. The same service as everywhere."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.utils import timezone

from controlplane.errors import Invalid
from controlplane.namespaces.services import NamespaceSettings
from controlplane.onboarding.services import Onboarded, onboard_tenant
from controlplane.policies.watermarks import WatermarkValues
from controlplane.tenants.services import TenantSettings

EXPIRES_DAYS_MAX = 3660


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("tenant", help="id of the tenant: acme")
    parser.add_argument("namespace", help="id of its namespace in the tenant: support")
    parser.add_argument("--name", default="", help="of the tenant, for people; its id when left out")
    parser.add_argument("--key-name", default="app", help="of its first key")
    parser.add_argument("--key-days", type=int, help="days until the key expires; never when left out")
    parser.add_argument("--prefill-tokens-per-s", type=float, help="budget of uncached prompt tokens on each router")
    parser.add_argument("--prefill-burst-tokens", type=int, help="what it may save up")
    parser.add_argument("--model", action="append", default=[], help="one it may ask for; every one when left out")
    parser.add_argument("--ttft-slo-ms", type=float, help="objective for the time to first token")
    parser.add_argument("--priority", type=int, default=0, help="-4 to 4")
    parser.add_argument("--on-stale", choices=("serve", "deny"), default="serve", help="when its policy is stale")
    parser.add_argument("--watermark", nargs=2, type=float, metavar=("LOW", "HIGH"), help="shares of KV use, 0 to 1")
    parser.add_argument("--dry-run", action="store_true", help="try all of it, then take it back")


def run(options: dict[str, Any], *, actor: str) -> Onboarded:  # Any: parsed arguments
    """Raises ControlError for what a service refuses."""
    marks = options["watermark"]
    return onboard_tenant(
        actor=actor,
        tenant=options["tenant"],
        tenant_settings=TenantSettings(
            name=options["name"] or options["tenant"],
            prefill_tokens_per_s=options["prefill_tokens_per_s"],
            prefill_burst_tokens=options["prefill_burst_tokens"],
        ),
        namespace=options["namespace"],
        namespace_settings=NamespaceSettings(
            model_names=options["model"],
            ttft_slo_ms=options["ttft_slo_ms"],
            priority=options["priority"],
            on_stale=options["on_stale"],
        ),
        key_name=options["key_name"],
        key_expires_at=_expires_at(options["key_days"]),
        watermark=WatermarkValues(low=marks[0], high=marks[1], dwell_s=0.0) if marks else None,
        dry_run=options["dry_run"],
    )


def _expires_at(days: int | None) -> Any:  # Any: a time or None
    if days is None:
        return None
    if not 0 < days <= EXPIRES_DAYS_MAX:
        raise Invalid.field("key_days", f"A key expires within 1 to {EXPIRES_DAYS_MAX} days.")
    return timezone.now() + timedelta(days=days)
