"""Roles as sets of capabilities, and what a caller holds where. Pure: no database. Default deny.

A capability is held in the whole fleet or in single tenants. What belongs to no tenant (workers, pools, snapshots,
global policies) asks for it in the whole fleet; what belongs to a tenant asks for it there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Capability(StrEnum):
    """`<noun>.<verb>`; also the scopes of personal API tokens."""

    TENANTS_VIEW = "tenants.view"
    TENANTS_CHANGE = "tenants.change"
    TENANTS_REVOKE = "tenants.revoke"
    """Suspend, resume and revoke tenants."""
    LIMITS_CHANGE = "limits.change"
    """Budgets and priorities: a tenant's own administrator must not raise them."""
    NAMESPACES_VIEW = "namespaces.view"
    NAMESPACES_CHANGE = "namespaces.change"
    KEYS_VIEW = "keys.view"
    KEYS_CHANGE = "keys.change"
    ACCESS_REVOKE = "access.revoke"
    """Suspend, revoke and rotate namespaces; revoke keys."""
    TEMPLATES_VIEW = "templates.view"
    TEMPLATES_CHANGE = "templates.change"
    POLICIES_VIEW = "policies.view"
    POLICIES_CHANGE = "policies.change"
    FLEET_VIEW = "fleet.view"
    """Pools, workers, routers, snapshots, and the dashboard's pages of the whole fleet."""
    FLEET_CHANGE = "fleet.change"
    METRICS_VIEW = "metrics.view"
    REQUESTS_VIEW = "requests.view"
    """Recorded decisions and their explanations."""
    ISOLATION_VIEW = "isolation.view"
    """Violations, findings, canaries, revocations under way."""
    ISOLATION_CHANGE = "isolation.change"
    """Acknowledge violations and findings, start canaries and audits."""
    SHARING_CHANGE = "sharing.change"
    """Propose what lets namespaces share cached prefixes."""
    CHANGES_APPROVE = "changes.approve"
    """Approve what another person proposed."""
    REPORTS_VIEW = "reports.view"
    REPORTS_CHANGE = "reports.change"
    WHAT_IFS_VIEW = "whatifs.view"
    WHAT_IFS_ASK = "whatifs.ask"
    """Have recorded traffic simulated on another fleet."""
    ALERTS_VIEW = "alerts.view"
    """Alerts of what one sees, their rules and silences."""
    ALERTS_CHANGE = "alerts.change"
    """Alert rules, silences, acknowledgement of alerts."""
    INTEGRATIONS_VIEW = "integrations.view"
    INTEGRATIONS_CHANGE = "integrations.change"
    """Webhooks and alert receivers."""
    AUDIT_VIEW = "audit.view"
    MEMBERS_VIEW = "members.view"
    MEMBERS_CHANGE = "members.change"


class Role(StrEnum):
    VIEWER = "viewer"
    OPERATOR = "operator"
    TENANT_ADMIN = "tenant_admin"
    SECURITY = "security"
    ADMIN = "admin"


ROLE_LABELS = {
    Role.VIEWER: "Viewer",
    Role.OPERATOR: "Operator",
    Role.TENANT_ADMIN: "Tenant administrator",
    Role.SECURITY: "Security",
    Role.ADMIN: "Administrator",
}

_C = Capability
_EVERYTHING = frozenset(Capability)
_VIEWS = frozenset(item for item in Capability if item.endswith(".view")) - {_C.MEMBERS_VIEW}

IN_A_TENANT = frozenset(
    {
        _C.TENANTS_VIEW,
        _C.NAMESPACES_VIEW,
        _C.NAMESPACES_CHANGE,
        _C.KEYS_VIEW,
        _C.KEYS_CHANGE,
        _C.ACCESS_REVOKE,
        _C.TEMPLATES_VIEW,
        _C.TEMPLATES_CHANGE,
        _C.POLICIES_VIEW,
        _C.METRICS_VIEW,
        _C.REQUESTS_VIEW,
        _C.ISOLATION_VIEW,
        _C.ISOLATION_CHANGE,
        _C.REPORTS_VIEW,
        _C.WHAT_IFS_VIEW,
        _C.WHAT_IFS_ASK,
        _C.ALERTS_VIEW,
        _C.AUDIT_VIEW,
        _C.MEMBERS_VIEW,
        _C.MEMBERS_CHANGE,
    }
)
"""What a membership in one tenant can carry, whatever its role: the rest is the fleet's."""

ROLES: Mapping[Role, frozenset[Capability]] = {
    Role.VIEWER: _VIEWS,
    Role.OPERATOR: _EVERYTHING - {_C.MEMBERS_VIEW, _C.MEMBERS_CHANGE, _C.CHANGES_APPROVE},
    Role.TENANT_ADMIN: IN_A_TENANT - {_C.ISOLATION_CHANGE},
    Role.SECURITY: _VIEWS
    | {
        _C.MEMBERS_VIEW,
        _C.TENANTS_REVOKE,
        _C.ACCESS_REVOKE,
        _C.ISOLATION_CHANGE,
        _C.ALERTS_CHANGE,
        _C.SHARING_CHANGE,
        _C.CHANGES_APPROVE,
    },
    Role.ADMIN: _EVERYTHING,
}


@dataclass(frozen=True, slots=True)
class Access:
    """What one caller holds. The empty one may nothing."""

    fleet: frozenset[Capability] = frozenset()
    """Held everywhere."""
    by_tenant: Mapping[str, frozenset[Capability]] = field(default_factory=dict)
    """Tenant slug → held there, on top of `fleet`."""

    def may(self, capability: Capability, tenant: str = "") -> bool:
        """Whether it is held in the tenant of that slug; "" asks for the whole fleet."""
        return capability in self.fleet or (bool(tenant) and capability in self.by_tenant.get(tenant, ()))

    def may_somewhere(self, capability: Capability) -> bool:
        return capability in self.fleet or any(capability in held for held in self.by_tenant.values())

    def tenants(self, capability: Capability) -> frozenset[str] | None:
        """Slugs of the tenants in which it is held; None = in all of them."""
        if capability in self.fleet:
            return None
        return frozenset(slug for slug, held in self.by_tenant.items() if capability in held)

    def limited_to(self, scopes: Iterable[str]) -> Access:
        """What is left of it for a token with these scopes: never more than its owner holds at this moment."""
        kept = frozenset(scopes)
        return Access(
            fleet=frozenset(item for item in self.fleet if item in kept),
            by_tenant={slug: frozenset(item for item in held if item in kept) for slug, held in self.by_tenant.items()},
        )

    def covers(self, role: Role, tenant: str = "") -> bool:
        """Whether everything that the role carries there is held: nobody grants more than they have."""
        return all(self.may(capability, tenant) for capability in carried(role, tenant))


NO_ACCESS = Access()
FULL_ACCESS = Access(fleet=_EVERYTHING)


def carried(role: Role, tenant: str = "") -> frozenset[Capability]:
    """The capabilities of a membership with this role in a tenant, or ("") in the whole fleet."""
    return ROLES[role] & IN_A_TENANT if tenant else ROLES[role]


def access_from(memberships: Iterable[tuple[str, str]]) -> Access:
    """Of (role, tenant slug or "") pairs. A role that this release does not know carries nothing."""
    fleet: frozenset[Capability] = frozenset()
    by_tenant: dict[str, frozenset[Capability]] = {}
    for name, tenant in memberships:
        held = carried(Role(name), tenant) if name in Role else frozenset()
        if tenant:
            by_tenant[tenant] = by_tenant.get(tenant, frozenset()) | held
        else:
            fleet |= held
    return Access(fleet, by_tenant)
