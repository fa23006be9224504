"""Which questions somebody may see, the tenants first."""

from __future__ import annotations

from collections.abc import Collection

from django.db.models import QuerySet

from controlplane.errors import NotFound
from controlplane.what_if.models import WhatIf

Tenants = Collection[str] | None
"""Slugs; None = whoever asks sees the whole fleet's."""


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
