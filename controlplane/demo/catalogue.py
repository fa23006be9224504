"""Whom the demo consists of: tenants, their namespaces, templates and shares of the traffic. Data only."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.prompts.segments import Segment


@dataclass(frozen=True)
class DemoNamespace:
    tenant: str
    slug: str
    name: str
    template: str
    share: float
    """Of the traffic player's sessions."""
    ttft_slo_ms: float
    session_header: bool
    """Whether its requests carry X-Session-ID; without, the router goes by prefix alone."""

    @property
    def namespace_id(self) -> str:
        return f"{self.tenant}/{self.slug}"


TENANTS = {"acme": "Acme Support", "globex": "Globex Engineering", "initech": "Initech Analytics"}

NAMESPACES = (
    DemoNamespace("acme", "support", "Customer support assistant", "support-agent", 0.4, 1500, session_header=True),
    DemoNamespace("globex", "coding", "Coding agents", "coding-agent", 0.35, 2500, session_header=True),
    DemoNamespace("globex", "review", "Code review", "coding-agent", 0.1, 4000, session_header=False),
    DemoNamespace("initech", "analytics", "Question answering on reports", "analyst", 0.15, 2500, session_header=False),
)

TEMPLATES: dict[str, list[Segment]] = {
    "support-agent": [
        {
            "kind": "static",
            "name": "rules",
            "text": "You are the support assistant. Be exact, be brief, cite the article.",
        },
        {"kind": "semi_static", "name": "customer", "text": "{customer_profile}"},
        {"kind": "dynamic", "name": "question", "text": "{question}"},
    ],
    "coding-agent": [
        {
            "kind": "static",
            "name": "rules",
            "text": "You are a coding agent. Use the tools; never guess a file's content.",
        },
        {"kind": "static", "name": "tools", "text": "{tool_definitions}"},
        {"kind": "semi_static", "name": "repository", "text": "{repository_map}"},
        {"kind": "dynamic", "name": "turn", "text": "{turn}"},
    ],
    "analyst": [
        {"kind": "static", "name": "rules", "text": "You answer questions from the report. Give figures with units."},
        {"kind": "semi_static", "name": "report", "text": "{report}"},
        {"kind": "dynamic", "name": "question", "text": "{question}"},
    ],
}
