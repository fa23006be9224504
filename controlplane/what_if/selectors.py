"""Which questions somebody may see, the tenants first."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.db.models import QuerySet

from controlplane.errors import NotFound
from controlplane.what_if.models import WhatIf

Tenants = Collection[str] | None
"""Slugs; None = whoever asks sees the whole fleet's."""
OF_THE_FLEET = frozenset({"workers", "slice_workers", "cost_per_h"})
"""Fields of an answer."""


def what_ifs_of(tenants: Tenants) -> QuerySet[WhatIf]:
    """Without their answers, which are large."""
    rows = WhatIf.objects.all() if tenants is None else WhatIf.objects.filter(tenant__in=tenants)
    return rows.defer("answer")


def find_what_if(what_if: int, tenants: Tenants) -> WhatIf:
    """With its answer. Raises NotFound for what is not theirs to see too."""
    rows = WhatIf.objects.all() if tenants is None else WhatIf.objects.filter(tenant__in=tenants)
    row = rows.filter(pk=what_if).first()
    if row is None:
        raise NotFound("There is no such question.")
    return row


def answer_for(row: WhatIf, *, sees_fleet: bool) -> dict[str, Any] | None:
    """Without what the fleet has and costs, for who does not see the fleet."""
    if row.answer is None or sees_fleet:
        return row.answer
    scenarios = [_without(scenario, OF_THE_FLEET) for scenario in row.answer["scenarios"]]
    return _without(row.answer, OF_THE_FLEET) | {"scenarios": scenarios}


def _without(values: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}
