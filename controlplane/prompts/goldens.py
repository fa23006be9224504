"""Regression check of published templates: the tokens of their static part, kept by pool and computed again.

Tokenizer, chat template and tool schema are versions that nobody raises: a file replaced in place moves every block.
Pools without a tokenizer at hand cannot be checked and are left out.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from controlplane.audit.services import record
from controlplane.fleet.findings import Observation, observe, resolve
from controlplane.fleet.models import WorkerPool
from controlplane.prompts.lints import stable_prefix
from controlplane.prompts.models import PromptGolden, PromptTemplateVersion
from controlplane.prompts.rendering import stable, tool_name
from controlplane.prompts.segments import Segment
from controlplane.prompts.tokens import counter_for, file_digests, tokenizer_folder

FINDING_KIND = "template_regression"
VERSIONS_CHECKED_MAX = 2000
_decoder = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Reading:
    """A version's static part in a pool, at this moment."""

    pool: str
    tokenizer_digest: str
    chat_template_digest: str
    tokens: int
    digest: str


def read_pool(segments: Sequence[Segment], pool: WorkerPool) -> Reading | None:
    """None where the pool's tokenizer is not at hand."""
    folder, counter = tokenizer_folder(pool), counter_for(pool)
    if folder is None or not counter.exact:
        return None
    ids = counter.ids(stable_prefix(segments))
    files = file_digests(folder)
    digest = hashlib.sha256(array("I", ids).tobytes()).hexdigest()
    return Reading(pool.slug, files["tokenizer"], files["chat_template"], len(ids), digest)


def check_versions(versions: Iterable[PromptTemplateVersion], *, now: datetime | None = None) -> list[PromptGolden]:
    """Compare with what was accepted; a pair of version and pool seen first is accepted as it is.

    Opens a finding for each version that changed and resolves those that are as accepted again.
    """
    moment = now or timezone.now()
    pools = list(WorkerPool.objects.exclude(tokenizer=""))
    checked: list[PromptGolden] = []
    for version in versions:
        goldens = [golden for pool in pools if (golden := _check(version, pool, moment)) is not None]
        _tell(version, goldens, moment)
        checked += goldens
    return checked


def published_versions() -> Iterable[PromptTemplateVersion]:
    rows = PromptTemplateVersion.objects.filter(status=PromptTemplateVersion.VersionStatus.PUBLISHED)
    return rows.select_related("template__tenant")[:VERSIONS_CHECKED_MAX]


def accept_goldens(
    version: PromptTemplateVersion, *, actor: str, reason: str = "", request_id: str = ""
) -> list[PromptGolden]:
    """Take the present tokens as the right ones, after a change that was meant."""
    now = timezone.now()
    with transaction.atomic():
        before = {golden.pool: golden.digest for golden in version.goldens.all()}
        version.goldens.all().delete()
        goldens = check_versions([version], now=now)
        record(
            actor=actor,
            action="template.accept_tokens",
            object_type="template",
            object_id=subject_of(version),
            before={"digests": before},
            after={"digests": {golden.pool: golden.digest for golden in goldens}},
            affects_routing=False,
            reason=reason,
            request_id=request_id,
        )
    return goldens


def subject_of(version: PromptTemplateVersion) -> str:
    """`<tenant>/<slug>@<version>`. Reads template and tenant: select them along."""
    return f"{version.template}@{version.version}"


def tools_digest(segments: Sequence[Segment]) -> str:
    """Of all tools written into static segments, in their stable spelling; "" without any."""
    tools = [tool for each in segments if each["kind"] == "static" for tool in _tools_in(each["text"])]
    if not tools:
        return ""
    text = json.dumps(stable(tools), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _check(version: PromptTemplateVersion, pool: WorkerPool, now: datetime) -> PromptGolden | None:
    reading = read_pool(version.segments, pool)
    if reading is None:
        return None
    golden = version.goldens.filter(pool=pool.slug).first()
    if golden is None:
        return PromptGolden.objects.create(
            version=version,
            pool=pool.slug,
            tokenizer_digest=reading.tokenizer_digest,
            chat_template_digest=reading.chat_template_digest,
            tokens=reading.tokens,
            digest=reading.digest,
            accepted_at=now,
            checked_at=now,
        )
    golden.fault, golden.checked_at = _fault(golden, reading), now
    golden.save(update_fields=["fault", "checked_at"])
    return golden


def _fault(golden: PromptGolden, reading: Reading) -> str:
    if golden.digest != reading.digest:
        return (
            f"The tokenizer of pool {reading.pool} makes other tokens of it ({golden.tokens} before, {reading.tokens} "
            f"at present): what is cached of it is of no use."
        )
    if golden.chat_template_digest != reading.chat_template_digest:
        return f"The chat template of pool {reading.pool} changed: what it puts in front may shift every block."
    return ""


def _tell(version: PromptTemplateVersion, goldens: Sequence[PromptGolden], now: datetime) -> None:
    subject = subject_of(version)
    faults = [golden.fault for golden in goldens if golden.fault]
    if faults:
        observe([Observation(FINDING_KIND, subject, " ".join(faults))], at=now)
    else:
        resolve([subject], [FINDING_KIND], at=now)


def _tools_in(text: str) -> list[Any]:
    tools: list[Any] = []
    position = text.find("{")
    while 0 <= position < len(text):
        try:
            value, end = _decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            end = position + 1
        else:
            tools += [value] if tool_name(value) is not None else []
        position = text.find("{", end)
    return tools
