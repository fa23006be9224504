"""`tidemark onboard`: the same onboarding as over REST and in the wizard, from a machine's shell."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from controlplane.audit.models import AuditEntry
from controlplane.namespaces.models import ApiKey, CacheNamespace
from controlplane.policies.models import WatermarkPolicy
from controlplane.tenants.models import Tenant
from router.contract.secrets import split_api_key

pytestmark = pytest.mark.django_db


def _onboard(*arguments: str) -> tuple[str, str]:
    out, err = StringIO(), StringIO()
    call_command("tidemark", "onboard", *arguments, stdout=out, stderr=err)
    return out.getvalue().strip(), err.getvalue().strip()


def test_it_makes_all_of_it_and_prints_the_key_alone() -> None:
    out, err = _onboard(
        "umbrella", "reports", "--name", "Umbrella", "--prefill-tokens-per-s", "5000", "--ttft-slo-ms", "900",
        "--model", "m", "--watermark", "0.6", "0.8", "--key-days", "30", "--on-stale", "deny",
    )  # fmt: skip
    parts = split_api_key(out)
    assert parts, "stdout holds the key and nothing else"
    assert "umbrella/reports" in err and out not in err
    tenant, row, key = Tenant.objects.get(), CacheNamespace.objects.get(), ApiKey.objects.get()
    assert (tenant.name, tenant.prefill_tokens_per_s, row.namespace_id) == ("Umbrella", 5000.0, "umbrella/reports")
    assert (row.ttft_slo_ms, row.model_names, row.on_stale) == (900.0, ["m"], "deny")
    assert key.key_id == parts[0] and key.expires_at is not None
    assert WatermarkPolicy.objects.filter(scope="namespace").count() == 1
    assert {entry.actor.split()[0] for entry in AuditEntry.objects.all()} == {"system:onboard"}


def test_a_dry_run_makes_nothing_and_prints_no_key() -> None:
    out, err = _onboard("umbrella", "reports", "--dry-run")
    assert out == "" and "would be made" in err
    assert not Tenant.objects.exists() and not AuditEntry.objects.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["Not Good", "n"], "Use 1–48 lower-case letters"),
        (["umbrella", "n", "--watermark", "0.9", "0.5"], "Low must be below high."),
        (["umbrella", "n", "--key-days", "0"], "A key expires within"),
    ],
)
def test_what_is_refused_ends_in_words_and_makes_nothing(arguments: list[str], words: str) -> None:
    with pytest.raises(CommandError, match=words):
        _onboard(*arguments)
    assert not Tenant.objects.exists()
