"""The demo's fleet: simulated workers, and the rows that make them usable. Seeding may be repeated at every start.

What an operator changed in the meantime stays, except addresses of the workers, which follow the ports of this start.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction

from controlplane.demo.catalogue import NAMESPACES, TEMPLATES, TENANTS, DemoNamespace
from controlplane.demo.workers import BLOCK_SIZE, MODEL, demo_workers, worker_addresses
from controlplane.fleet import services as fleet
from controlplane.fleet.models import Worker, WorkerPool
from controlplane.namespaces import key_services
from controlplane.namespaces import services as namespaces
from controlplane.namespaces.models import ApiKey, CacheNamespace
from controlplane.prompts import services as prompts
from controlplane.prompts.models import PromptTemplate
from controlplane.supervisor.prepare import write_private
from controlplane.tenants import services as tenants
from controlplane.tenants.models import Tenant
from router.contract.secrets import split_api_key
from simulator.profiles import WorkerSpec

ACTOR = "system:demo"
POOL = "demo"
KEY_NAME = "demo traffic"


@dataclass(frozen=True)
class TrafficKey:
    """One entry of the keys file, as the traffic player reads it."""

    tenant: str
    namespace: str
    key: str
    model: str
    template: str
    share: float
    session_header: bool


def seed(*, base_port: int, keys_file: Path, routing: str) -> None:
    """Creates what is missing in one transaction, hence one publication. Full keys exist in `keys_file` (0600) only."""
    with transaction.atomic():
        for slug, name in TENANTS.items():
            if not Tenant.objects.filter(slug=slug).exists():
                tenants.create_tenant(actor=ACTOR, slug=slug, name=name)
        for namespace in NAMESPACES:
            _seed_namespace(namespace)
        _seed_pool(routing)
        for worker in demo_workers(base_port):
            _seed_worker(worker)
        keys = [_traffic_key(namespace, _kept_keys(keys_file)) for namespace in NAMESPACES]
    write_private(keys_file, json.dumps([asdict(key) for key in keys], indent=1))
    write_private(keys_file.with_name("demo-key"), keys[0].key + "\n")


def _seed_namespace(wanted: DemoNamespace) -> None:
    if not CacheNamespace.objects.filter(tenant__slug=wanted.tenant, slug=wanted.slug).exists():
        namespaces.create_namespace(
            actor=ACTOR, tenant=wanted.tenant, slug=wanted.slug, name=wanted.name, ttft_slo_ms=wanted.ttft_slo_ms
        )
    if not PromptTemplate.objects.filter(tenant__slug=wanted.tenant, slug=wanted.template).exists():
        name = f"{wanted.tenant}/{wanted.template}"
        prompts.create_template(actor=ACTOR, tenant=wanted.tenant, slug=wanted.template, name=wanted.name)
        draft = prompts.draft_version(actor=ACTOR, template=name, segments=TEMPLATES[wanted.template])
        prompts.publish_version(actor=ACTOR, template=name, version=draft.version)


def _seed_pool(routing: str) -> None:
    pool = WorkerPool.objects.filter(slug=POOL).first()
    if pool is None:
        fleet.create_pool(
            actor=ACTOR,
            slug=POOL,
            models=[MODEL],
            name="Simulated workers",
            block_size=BLOCK_SIZE,
            routing=routing or WorkerPool.Routing.TIDEMARK,
        )
    elif routing and pool.routing != routing:
        fleet.update_pool(POOL, actor=ACTOR, routing=routing)


def _seed_worker(wanted: WorkerSpec) -> None:
    addresses: dict[str, Any] = worker_addresses(wanted)  # Any: keyword arguments beside others of other types
    row = Worker.objects.filter(pool__slug=POOL, slug=wanted.name).first()
    if row is None:
        fleet.add_worker(actor=ACTOR, pool=POOL, slug=wanted.name, **addresses)
    elif any(getattr(row, field) != value for field, value in addresses.items()):
        fleet.update_worker(f"{POOL}/{wanted.name}", actor=ACTOR, **addresses)


def _kept_keys(keys_file: Path) -> dict[str, str]:
    """Namespace id → full key of an earlier start; empty when there is none."""
    try:
        return {entry["namespace"]: entry["key"] for entry in json.loads(keys_file.read_text())}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _traffic_key(namespace: DemoNamespace, kept: dict[str, str]) -> TrafficKey:
    return TrafficKey(
        tenant=namespace.tenant,
        namespace=namespace.namespace_id,
        key=_valid_key(namespace.namespace_id, kept.get(namespace.namespace_id, "")),
        model=MODEL,
        template=f"{namespace.template}@1",
        share=namespace.share,
        session_header=namespace.session_header,
    )


def _valid_key(namespace: str, kept: str) -> str:
    """The kept key when it still opens the namespace, else a fresh one; earlier ones of the demo are revoked."""
    tenant, _, slug = namespace.partition("/")
    active = ApiKey.objects.filter(namespace__tenant__slug=tenant, namespace__slug=slug, name=KEY_NAME, status="active")
    parts = split_api_key(kept) if kept else None
    for key in active:
        if parts and key.key_id == parts[0] and key.secret_hash == settings.FLEET_KEY.api_key_hash(*parts):
            return kept
    for key in active:
        key_services.revoke_key(actor=ACTOR, key_id=key.key_id, reason="the demo's keys file is gone")
    return key_services.issue_key(actor=ACTOR, namespace=namespace, name=KEY_NAME).text
