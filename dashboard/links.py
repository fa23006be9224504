"""Where a thing of the fleet is looked at, and the one action that an item of the attention list offers."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from controlplane.isolation.selectors import Attention
from dashboard.scope import PageState


@dataclass(frozen=True, slots=True)
class AttentionRow:
    item: Attention
    href: str
    action: str
    """What the link does, in words."""


def attention_row(item: Attention, state: PageState) -> AttentionRow:
    path, action = _target(item)
    joint = "&" if "?" in path else "?"
    return AttentionRow(item=item, href=f"{path}{joint}{state.query()}", action=action)


def _target(item: Attention) -> tuple[str, str]:
    target = quote(item.target_id, safe="/")
    if item.kind == "isolation_violation" or item.target_kind == "violation":
        return "/isolation/?open=1", "Review"
    if item.target_kind == "worker":
        return f"/workers/{target}/", f"Open {item.target_id}"
    if item.target_kind == "pool":
        return f"/policies/pool/{target}/", "Open its policy"
    if item.target_kind == "template":
        name, _, version = target.rpartition("%40")
        return f"/templates/{name}/{version}/", "Open the version"
    if item.target_kind == "namespace":
        return f"/policies/namespace/{target}/", "Open its policy"
    if item.target_kind == "router":
        return "/policies/", "See roll-out"
    return "/workers/", "See sources"
