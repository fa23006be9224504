"""One workload of several tenants: equal texts of two tenants have different names, as their salts make them have.

Sessions go to tenants in turn, by what a client would send as its session id. The load keeps its meaning: it is that of
the workload without salts, so several tenants who could have shared a prefix ask for more work than it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simulator.fleet.names import key_of, named
from simulator.fleet.workload import Request, Workload


class SaltedWorkload:
    def __init__(self, workload: Workload, *, tenants: int) -> None:
        self._workload = workload
        self._tenants = tenants
        self._plain: dict[int, Request] = {}
        self.demand_s = workload.demand_s
        self.duration_s = workload.duration_s

    def first(self) -> list[Request]:
        return [self._salted(request) for request in self._workload.first()]

    def after(self, request: Request, finished_s: float) -> Request | None:
        following = self._workload.after(self._plain.pop(request.id), finished_s)
        return None if following is None else self._salted(following)

    def _salted(self, request: Request) -> Request:
        tenant = request.affinity % self._tenants
        self._plain[request.id] = request
        return replace(
            request,
            chain=_renamed("salt", tenant, request.chain),
            text_hashes=_renamed("text salt", tenant, request.text_hashes),
            tenant=tenant,
        )


def _renamed[Name: int](family: str, tenant: int, names: Sequence[Name]) -> list[Name]:
    renamed: list[Name] = named(key_of(family, tenant), np.array(names, dtype=np.uint64)).tolist()
    return renamed
