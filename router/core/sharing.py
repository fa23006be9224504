"""Which namespaces share cached prefixes (S1.6): the cache domains of a snapshot as routers salt them.

A private namespace is a domain of its own. A shared domain's nonce is made from the one in the snapshot and from who
may share at this moment, each with its own generation:

    nonce = SHA-256(framed(domain nonce, member, its nonce, member, its nonce, …)), the active members in order

so whoever leaves, is revoked or suspended, or gets another generation leaves nothing behind that the others can hit:
from that moment all of them meet an empty cache. Routers settle it from the snapshot, with the revocations laid over
it, so no membership is told twice.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict

import msgspec

from router.contract.ids import NamespaceId, TenantId
from router.contract.public import DOMAIN
from router.contract.secrets import framed
from router.contract.snapshot import CacheDomain, NamespacePolicy, PolicySnapshot

Members = list[tuple[NamespaceId, NamespacePolicy]]


class Shared(msgspec.Struct, frozen=True, gc=False):
    """A domain that namespaces share."""

    id: str
    nonce: str
    """Hexadecimal."""
    generation: int
    generation_at: float
    """Unix seconds; not later than the moment at which the nonce came to be."""
    owner: TenantId
    """Whose share of the index it takes: its tenant's, or its own where tenants share."""


PUBLIC = Shared(DOMAIN, DOMAIN, 1, 0.0, TenantId(DOMAIN + ":"))
"""Of public texts: every namespace that takes part shares it, and nothing else ever carries its salt. Its name is
enough, since the fleet key makes the salt; its owner can be no tenant's slug."""


def shared_domains(snapshot: PolicySnapshot) -> dict[NamespaceId, Shared]:
    """Namespace → its domain, of the active namespaces that share. One whose domain the snapshot lacks is private."""
    if not snapshot.domains:
        return {}
    members: dict[str, Members] = defaultdict(list)
    for namespace, policy in sorted(snapshot.namespaces.items()):
        if policy.domain in snapshot.domains and _is_active(snapshot, policy):
            members[policy.domain].append((namespace, policy))
    found = {}
    for name, those in members.items():
        domain = snapshot.domains[name]
        if domain.kind == "project" and len({policy.tenant for _, policy in those}) > 1:
            continue  # A project is one tenant's: whatever told otherwise, nobody shares.
        shared = _settled(name, domain, those)
        found.update({namespace: shared for namespace, _ in those})
    return found


def in_domain(policy: NamespacePolicy, shared: Shared) -> NamespacePolicy:
    """The policy with the domain's generation in the place of its own."""
    return msgspec.structs.replace(
        policy, generation_nonce=shared.nonce, generation=shared.generation, generation_at=shared.generation_at
    )


def _settled(name: str, domain: CacheDomain, members: Members) -> Shared:
    parts = [part for namespace, policy in members for part in (namespace, policy.generation_nonce)]
    # A nonce that is not told is none: nothing can be salted (503), and two such domains must not meet.
    complete = domain.nonce and all(policy.generation_nonce for _, policy in members)
    nonce = hashlib.sha256(framed(domain.nonce, *parts)).hexdigest() if complete else ""
    begun_at = max(domain.generation_at, *(policy.generation_at for _, policy in members))
    owner = TenantId(name) if domain.kind == "group" else members[0][1].tenant
    return Shared(name, nonce, domain.generation, begun_at, owner)


def _is_active(snapshot: PolicySnapshot, policy: NamespacePolicy) -> bool:
    tenant = snapshot.tenants.get(policy.tenant)
    return policy.status == "active" and tenant is not None and tenant.status == "active"
