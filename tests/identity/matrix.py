"""The addresses of the matrix test: one of the caller's tenant, one of another's, and bodies that name a tenant.

A view without an entry here and a line in `matrix.txt` fails the test (S14).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.identity.world import EPOCHS, KEYS, MEMBERS

UNREADABLE = {"no-such-field": 1}
"""For calls whose empty body asks for something that is not there."""
TABLE = Path(__file__).with_name("matrix.txt")


@dataclass(frozen=True, slots=True)
class Address:
    own: str
    """Below /api/v1/; of acme, or of the fleet."""
    other: str = ""
    """The same of globex; "" = it belongs to the fleet, or is a list."""
    bodies: dict[str, tuple[object, object]] = field(default_factory=dict)
    """Method → (a body that names acme, the same for globex); methods without one get `{}`."""


ADDRESSES = {
    "api-tenants": Address("tenants"),
    "api-tenant": Address("tenants/acme", "tenants/globex"),
    "api-tenant-status": Address("tenants/acme/status", "tenants/globex/status"),
    "api-namespaces": Address(
        "namespaces",
        "namespaces",
        {"post": ({"tenant": "acme", "slug": "more"}, {"tenant": "globex", "slug": "more"})},
    ),
    "api-namespace": Address("namespaces/acme/support", "namespaces/globex/support"),
    "api-namespace-status": Address("namespaces/acme/support/status", "namespaces/globex/support/status"),
    "api-namespace-rotate": Address("namespaces/acme/support/rotate", "namespaces/globex/support/rotate"),
    "api-namespace-sharing": Address("namespaces/acme/support/sharing", "namespaces/globex/support/sharing"),
    "api-trust-groups": Address("trust-groups"),
    "api-trust-group": Address("trust-groups/alliance"),
    "api-trust-group-dissolve": Address("trust-groups/alliance/dissolve"),
    "api-keys": Address(
        "keys",
        "keys",
        {"post": ({"namespace": "acme/support", "name": "k"}, {"namespace": "globex/support", "name": "k"})},
    ),
    "api-key": Address(f"keys/{KEYS['acme']}", f"keys/{KEYS['globex']}"),
    "api-key-revoke": Address(f"keys/{KEYS['acme']}/revoke", f"keys/{KEYS['globex']}/revoke"),
    "api-key-rotate": Address(f"keys/{KEYS['acme']}/rotate", f"keys/{KEYS['globex']}/rotate"),
    "api-revocations": Address(
        "revocations",
        "revocations",
        {"post": ({"kind": "tenant", "subject": "acme"}, {"kind": "namespace", "subject": "globex/support"})},
    ),
    "api-revocation": Address(f"revocations/{EPOCHS['acme']}", f"revocations/{EPOCHS['globex']}"),
    "api-pools": Address("pools"),
    "api-pool": Address("pools/llama"),
    "api-workers": Address("workers"),
    "api-worker": Address("workers/llama/w1"),
    "api-worker-state": Address("workers/llama/w1/state"),
    "api-worker-test": Address("workers/llama/w1/test"),
    "api-worker-canaries": Address("workers/llama/w1/canaries"),
    "api-canaries": Address("canaries"),
    "api-worker-ttft-audits": Address("workers/llama/w1/ttft-audits"),
    "api-ttft-audits": Address("ttft-audits"),
    "api-ttft-audit": Address("ttft-audits/1"),
    "api-decisions": Address("decisions"),
    "api-decision": Address("decisions/of-acme", "decisions/of-globex"),
    "api-violations": Address("violations"),
    "api-violations-export": Address("violations.csv"),
    "api-violation": Address("violations/1", "violations/2"),
    "api-violation-acknowledge": Address("violations/1/acknowledge", "violations/2/acknowledge"),
    "api-findings": Address("findings"),
    "api-findings-export": Address("findings.json"),
    "api-finding": Address("findings/1"),
    "api-finding-acknowledge": Address("findings/1/acknowledge"),
    "api-templates": Address(
        "templates",
        "templates",
        {"post": ({"tenant": "acme", "slug": "more"}, {"tenant": "globex", "slug": "more"})},
    ),
    "api-template": Address("templates/acme/desk", "templates/globex/desk"),
    "api-template-lints": Address("templates/acme/desk/lints", "templates/globex/desk/lints"),
    "api-template-diff": Address("templates/acme/desk/diff?from=1&to=1", "templates/globex/desk/diff?from=1&to=1"),
    "api-template-versions": Address("templates/acme/desk/versions", "templates/globex/desk/versions"),
    "api-template-version": Address("templates/acme/desk/versions/1", "templates/globex/desk/versions/1"),
    "api-template-version-publish": Address(
        "templates/acme/desk/versions/1/publish", "templates/globex/desk/versions/1/publish"
    ),
    "api-template-version-public": Address(
        "templates/acme/desk/versions/1/public", "templates/globex/desk/versions/1/public"
    ),
    "api-template-version-retire": Address(
        "templates/acme/desk/versions/1/retire", "templates/globex/desk/versions/1/retire"
    ),
    "api-template-version-lints": Address(
        "templates/acme/desk/versions/1/lints", "templates/globex/desk/versions/1/lints"
    ),
    "api-template-version-render": Address(
        "templates/acme/desk/versions/1/render", "templates/globex/desk/versions/1/render"
    ),
    "api-template-version-regression": Address(
        "templates/acme/desk/versions/1/regression", "templates/globex/desk/versions/1/regression"
    ),
    "api-watermarks": Address("watermark-policies"),
    "api-watermark": Address(
        "watermark-policies/namespace:acme/support", "watermark-policies/namespace:globex/support"
    ),
    "api-watermark-rollback": Address(
        "watermark-policies/namespace:acme/support/rollback",
        "watermark-policies/namespace:globex/support/rollback",
        {"post": (UNREADABLE, UNREADABLE)},
    ),
    "api-routing-policies": Address("routing-policies"),
    "api-routing-policy": Address(
        "routing-policies/namespace:acme/support", "routing-policies/namespace:globex/support"
    ),
    "api-routing-rollback": Address(
        "routing-policies/namespace:acme/support/rollback",
        "routing-policies/namespace:globex/support/rollback",
        {"post": (UNREADABLE, UNREADABLE)},
    ),
    "api-policy-revisions": Address("policy-revisions"),
    "api-policy-revision": Address(
        "policy-revisions/watermark/namespace:acme/support/1", "policy-revisions/watermark/namespace:globex/support/1"
    ),
    "api-effective-policy": Address(
        "effective-policy?pool=llama&namespace=acme/support", "effective-policy?pool=llama&namespace=globex/support"
    ),
    "api-prefix-breakers": Address("prefix-breakers"),
    "api-placements": Address("placements"),
    "api-placement": Address("placements/1", "placements/2"),
    "api-policy-dry-run": Address(
        "policies/dry-run",
        "policies/dry-run",
        {
            "post": (
                {"kind": "routing", "scope": "namespace:acme/support", "values": {"priority": 1}},
                {"kind": "routing", "scope": "namespace:globex/support", "values": {"priority": 1}},
            )
        },
    ),
    "api-rollouts": Address(
        "rollouts",
        "rollouts",
        {
            "post": (
                {"kind": "watermark", "scope": "namespace:acme/support", "values": {}},
                {"kind": "watermark", "scope": "namespace:globex/support", "values": {}},
            )
        },
    ),
    "api-rollout": Address("rollouts/1", "rollouts/2"),
    "api-rollout-advance": Address("rollouts/1/advance", "rollouts/2/advance"),
    "api-rollout-rollback": Address("rollouts/1/rollback", "rollouts/2/rollback"),
    "api-change-requests": Address("change-requests"),
    "api-change-request": Address("change-requests/1", "change-requests/2"),
    "api-change-request-approve": Address("change-requests/1/approve", "change-requests/2/approve"),
    "api-change-request-reject": Address("change-requests/1/reject", "change-requests/2/reject"),
    "api-snapshots": Address("snapshots"),
    "api-snapshot-current": Address("snapshots/current"),
    "api-snapshot-poll": Address("snapshots/poll"),
    "api-routers": Address("routers"),
    "api-audit": Address("audit"),
    "api-audit-export": Address("audit.jsonl"),
    "api-dead-letters": Address("dead-letters"),
    "api-dead-letter-retry": Address("dead-letters/1/retry"),
    "api-alerts": Address("alerts"),
    "api-alert-rules": Address("alert-rules"),
    "api-alert-rule-preview": Address("alert-rules/preview"),
    "api-alert-rule": Address("alert-rules/hits-of-acme", "alert-rules/hits-of-globex"),
    "api-alert-history": Address("alert-history"),
    "api-alert-acknowledge": Address("alert-history/1/acknowledge", "alert-history/2/acknowledge"),
    "api-silences": Address("silences"),
    "api-silence-end": Address("silences/1/end"),
    "api-checklist": Address("checklist"),
    "api-webhooks": Address("webhooks"),
    "api-webhook": Address("webhooks/pager"),
    "api-webhook-test": Address("webhooks/pager/test"),
    "api-webhook-deliveries": Address("webhook-deliveries"),
    "api-webhook-redeliver": Address("webhook-deliveries/1/redeliver"),
    "api-report-schedules": Address("report-schedules"),
    "api-report-schedule": Address("report-schedules/1", "report-schedules/2"),
    "api-report-schedule-run": Address("report-schedules/1/run", "report-schedules/2/run"),
    "api-report-runs": Address("report-runs"),
    "api-report-run": Address("report-runs/1", "report-runs/2"),
    "api-report-file": Address("report-runs/1/files/json", "report-runs/2/files/json"),
    "api-report-retry": Address("report-runs/1/retry", "report-runs/2/retry"),
    "api-report-shares": Address("report-runs/1/shares", "report-runs/2/shares"),
    "api-report-share-revoke": Address("report-shares/1/revoke"),
    "api-report-redeliver": Address("report-deliveries/1/redeliver"),
    "api-what-ifs": Address(
        "what-ifs",
        "what-ifs",
        {
            "post": (
                {"pool": "llama", "tenant": "acme", "scenarios": [{"load_factor": 2}]},
                {"pool": "llama", "tenant": "globex", "scenarios": [{"load_factor": 2}]},
            )
        },
    ),
    "api-what-if": Address("what-ifs/1", "what-ifs/2"),
    "api-what-if-cancel": Address("what-ifs/1/cancel", "what-ifs/2/cancel"),
    "api-onboarding": Address("onboarding"),
    "api-members": Address(
        "members",
        "members",
        {
            "post": (
                {"user": "member-of-acme", "role": "viewer", "tenant": "acme"},
                {"user": "member-of-globex", "role": "viewer", "tenant": "globex"},
            )
        },
    ),
    "api-member": Address(f"members/{MEMBERS['acme']}", f"members/{MEMBERS['globex']}"),
    "api-my-access": Address("my/access"),
    "api-my-tokens": Address("my/tokens"),
    "api-my-token-revoke": Address("my/tokens/000000000000/revoke", "", {"post": (UNREADABLE, UNREADABLE)}),
    "api-schema": Address("schema"),
}


def lines() -> dict[tuple[str, str], str]:
    """(name of the address, method) → "fleet own other" letters."""
    found = {}
    for text in TABLE.read_text().splitlines():
        if text.strip() and not text.startswith("#"):
            name, method, letters = text.split(None, 2)
            found[name, method] = " ".join(letters.split())
    return found
