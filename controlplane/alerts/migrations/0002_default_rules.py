"""The rules that every installation begins with. They are the operators' own from then on."""

from __future__ import annotations

from typing import Any

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

RULES: list[dict[str, Any]] = [
    {
        "slug": "isolation-violation",
        "name": "Isolation violation",
        "measure": "violations",
        "comparison": "above",
        "threshold": 0,
        "window_s": 3600,
        "severity": "critical",
        "runbook": "1. Isolation page: which namespace, which worker, how many tokens above the bound.\n"
        "2. One worker only: drain it. Several: rotate the namespace's salt, or suspend the namespace.\n"
        "3. Ask the canaries of the worker. A leak means that salts have no effect there: check its vLLM version and "
        "what stands between router and worker.\n"
        "4. Acknowledge each violation with what was found.",
    },
    {
        "slug": "critical-finding",
        "name": "Critical finding",
        "measure": "critical_findings",
        "comparison": "above",
        "threshold": 0,
        "severity": "critical",
        "runbook": "1. Isolation page, open findings: kind and subject.\n"
        "2. docs/telemetry.md and docs/workers.md say for each kind what it means and what ends it.\n"
        "3. Acknowledge it when it may wait, with the reason.",
    },
    {
        "slug": "worker-down",
        "name": "Worker down",
        "measure": "worker_silent_s",
        "comparison": "above",
        "threshold": 30,
        "clear_at": 10,
        "severity": "critical",
        "runbook": "1. The worker's page: the error of its last poll.\n"
        "2. Is its process there? Restart it; its cache is cold then, and hits come back as prefixes are computed.\n"
        "3. Away for longer: put it into maintenance, so that it no longer counts as one that should serve.",
    },
    {
        "slug": "router-stale",
        "name": "Router stale",
        "measure": "router_silent_s",
        "comparison": "above",
        "threshold": 30,
        "clear_at": 10,
        "severity": "critical",
        "runbook": "1. Policies page, roll-out: which router, which version it last served.\n"
        "2. It goes on routing by its last snapshot, and does not hear of revocations: namespaces with on_stale "
        "deny stop after a minute.\n"
        "3. Restart it, or take it out of the load balancer. A router that was removed for good leaves this rule after "
        "a day.",
    },
    {
        "slug": "kv-use-high",
        "name": "KV use high",
        "measure": "kv_use",
        "comparison": "above",
        "threshold": 0.9,
        "clear_at": 0.8,
        "for_s": 300,
        "runbook": "1. One worker: a hot spot. Hot spots page: spread its prefixes.\n"
        "2. All of them: the fleet is full. Add workers, or lower the high watermark so that new prefixes are spread "
        "earlier.\n"
        "3. Evictions page: what it costs already.",
    },
    {
        "slug": "kv-event-gap",
        "name": "KV event gap",
        "measure": "event_gaps",
        "comparison": "above",
        "threshold": 0,
        "window_s": 900,
        "runbook": "1. The worker's page: is its replay endpoint named and reachable?\n"
        "2. With --kv-events-config buffer_steps higher, more can be asked for again.\n"
        "3. Until then its index entries may be stale: that costs misses, never wrong answers.",
    },
    {
        "slug": "hit-share-low",
        "name": "Hit share low",
        "measure": "hit_share",
        "comparison": "below",
        "threshold": 0.2,
        "clear_at": 0.25,
        "window_s": 900,
        "for_s": 900,
        "runbook": "1. Hit tokens page: is the gap the workload, routing, a stale index or eviction?\n"
        "2. Workload: look for prefix breakers on the Fleet page, and at templates published lately.\n"
        "3. Set the threshold to what this fleet usually reaches: 20 % is a guess.",
    },
    {
        "slug": "ttft-slow",
        "name": "TTFT slow",
        "measure": "ttft_p95_ms",
        "comparison": "above",
        "threshold": 5000,
        "clear_at": 4000,
        "for_s": 300,
        "runbook": "1. Fleet page: waiting requests and KV use. Both high: the fleet is full.\n"
        "2. Hits slow as well as misses: queues. Misses only: prompts grew, or caches went cold.\n"
        "3. A change just before? Policies page: roll it back.",
    },
    {
        "slug": "goodput-low",
        "name": "Goodput low",
        "measure": "goodput_share",
        "comparison": "below",
        "threshold": 0.95,
        "clear_at": 0.97,
        "for_s": 300,
        "runbook": "1. Which namespaces miss their objective: filter the Fleet page by tenant.\n"
        "2. Failed requests count as missed: Requests page, outcome.\n"
        "3. See TTFT slow.",
    },
    {
        "slug": "errors-high",
        "name": "Errors high",
        "measure": "error_share",
        "comparison": "above",
        "threshold": 0.02,
        "clear_at": 0.01,
        "for_s": 60,
        "severity": "critical",
        "runbook": "1. Requests page, filtered by outcome: no_worker, upstream_error, upstream_timeout.\n"
        "2. no_worker: every worker is full, drained or ejected. Workers page.\n"
        "3. upstream_*: one worker's? Drain it.",
    },
    {
        "slug": "budget-used-up",
        "name": "Budget used up",
        "measure": "budget_use",
        "comparison": "above",
        "threshold": 0.9,
        "clear_at": 0.8,
        "for_s": 300,
        "severity": "info",
        "runbook": "1. The tenant's page: what it asks for, and its hit share. A low one uses the budget up: see its "
        "prefix breakers.\n"
        "2. Requests above the budget wait or are refused with 429; others are not affected.\n"
        "3. Raise the budget if the fleet has room.",
    },
    {
        "slug": "work-given-up",
        "name": "Work given up",
        "measure": "work_given_up",
        "comparison": "above",
        "threshold": 0,
        "runbook": "1. Webhooks page, given-up work: which task, which error.\n"
        "2. Mend the cause, then begin it anew there.",
    },
]


def make_rules(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    rule = apps.get_model("alerts", "AlertRule")
    for values in RULES:
        rule.objects.get_or_create(slug=values["slug"], defaults=values)


class Migration(migrations.Migration):
    dependencies = [("alerts", "0001_initial")]

    operations = [migrations.RunPython(make_rules, migrations.RunPython.noop)]
