"""Panels of tenants: one tenant's status, a revocation under way, and what a new installation or namespace lacks."""

from __future__ import annotations

from controlplane.revocations.models import Revocation
from controlplane.revocations.selectors import WORDING, seen
from controlplane.snapshots.selectors import last_seen
from controlplane.telemetry.tenant_use import NO_USE, use_by_namespace
from dashboard import freshness, tenant_status
from dashboard.charts import fleet as charts
from dashboard.charts.tenants import budget_figure
from dashboard.data import PageData
from dashboard.first_run import first_run, first_steps
from dashboard.panels import fleet_tables
from dashboard.panels.base import Context, Panel, chart_context
from dashboard.tables import Table, series_table


def _revocation(data: PageData) -> Context:
    """Of the epoch that the page is about, within the state's tenant where it names one."""
    item = data.state.item
    rows = Revocation.objects.prefetch_related("acks").filter(epoch=int(item) if item.isdigit() else 0)
    if data.state.tenant:
        rows = rows.filter(tenant=data.state.tenant)
    row = rows.first()
    found = seen([row], last_seen(data.now), data.now)[0] if row else None
    return {"revocation": found, "wording": WORDING}


def _first_run(data: PageData) -> Context:
    return {"steps": data.ask(first_run)}


def _first_steps(data: PageData) -> Context:
    return {"steps": data.ask(first_steps, namespace=data.state.item)}


def _verdict(data: PageData) -> Context:
    return {"verdict": tenant_status.verdict_of(data)}


def _tiles(data: PageData) -> Context:
    return {"tiles": tenant_status.tiles_of(data)}


def _hits(data: PageData) -> Context:
    return chart_context(
        charts.hit_tokens_figure(data.hits, data.state.zone),
        [data.hits.prompt_tokens],
        "No request in this range.",
        "Send one with a key of the tenant, or choose a longer range.",
    )


def _ttft(data: PageData) -> Context:
    return chart_context(
        charts.ttft_figure(data.ttft, data.state.zone),
        [data.ttft.hit_p50_ms, data.ttft.miss_p50_ms],
        "No first token was measured in this range.",
        "Streamed answers of workers that name their cached tokens are measured.",
    )


def _budget(data: PageData) -> Context:
    rates = tenant_status.computed_per_s(data)
    limit = tenant_status.seen_of(data).row.prefill_tokens_per_s
    return chart_context(
        budget_figure(data.hits, rates, limit, data.state.zone),
        [data.hits.prompt_tokens],
        "No prompt token was computed in this range.",
        "What a tenant's requests make workers compute appears here, against its budget.",
    ) | {"limit": limit}


def _budget_table(data: PageData) -> Table:
    return series_table(
        data.hits, data.state.zone, [("computed prompt tokens (tokens/s)", tenant_status.computed_per_s(data))]
    )  # fmt: skip


def _namespaces(data: PageData) -> Context:
    uses = data.ask(use_by_namespace)
    return {"rows": [(row, uses.get(row.namespace_id, NO_USE)) for row in tenant_status.seen_of(data).namespaces]}


def _incidents(data: PageData) -> Context:
    return {"findings": data.ask(tenant_status.tenant_findings)}


def _changes(data: PageData) -> Context:
    return {"entries": data.ask(tenant_status.tenant_changes)}


PANELS = (
    Panel("revocation", "Routers", "Each router refuses what is revoked from its acknowledgement on.", _revocation,
          of_tenants=True),
    Panel("first_run", "First run", "From an empty installation to the first hit.", _first_run),
    Panel("first_steps", "Its first steps", "From the key to the first hit.", _first_steps),
    Panel("status_verdict", "Verdict", "", _verdict, of_tenants=True),
    Panel("status_tiles", "Figures", "", _tiles, freshness.of_routers, of_tenants=True),
    Panel("status_hits", "Hit tokens", "Prompt tokens served from cache, beside all of them.", _hits,
          freshness.of_routers, "chart", table=fleet_tables.hits, of_tenants=True),
    Panel("status_ttft", "TTFT, hit against miss",
          "Hit: at least half of the prompt cached. Miss: nothing cached. The band is the difference of the medians.",
          _ttft, freshness.of_routers, "chart", table=fleet_tables.ttft, of_tenants=True),
    Panel("status_budget", "Prefill against the budget",
          "Prompt tokens a second that had to be computed. The budget holds on each router; beyond it requests are "
          "refused with 429.", _budget, freshness.of_routers, "chart", table=_budget_table, of_tenants=True),
    Panel("status_namespaces", "Namespaces", "What each namespace had in the range.", _namespaces,
          freshness.of_routers, of_tenants=True),
    Panel("status_incidents", "Incidents", "Open findings about the tenant's namespaces and templates.", _incidents,
          of_tenants=True),
    Panel("status_changes", "Changes", "The latest entries of the audit log about the tenant.", _changes,
          of_tenants=True),
)  # fmt: skip
