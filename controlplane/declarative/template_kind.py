"""Prompt templates as documents, with every version: their numbers are what requests name."""

from __future__ import annotations

from typing import Any

from controlplane.declarative.documents import Spec
from controlplane.declarative.kind import LIST, TEXT, Change, Field, Kind
from controlplane.declarative.restoring import restore
from controlplane.errors import Conflict, Invalid
from controlplane.prompts.models import PromptTemplate, PromptTemplateVersion
from controlplane.prompts.public_services import withdraw_public
from controlplane.prompts.services import create_template, draft_version, edit_draft, publish_version, retire_version

FIELDS = {"name": Field(TEXT, ""), "versions": Field(LIST, [])}
VERSION_KEYS = {"version", "status", "segments", "accepted_lints", "public"}
ORDER = ("draft", "published", "retired")
"""A version only goes forward."""


def _read() -> dict[str, Spec]:
    rows = PromptTemplate.objects.select_related("tenant").prefetch_related("versions").order_by()
    return {
        str(row): {
            "name": row.name,
            "versions": [_version(each) for each in sorted(row.versions.all(), key=lambda each: each.version)],
        }
        for row in rows
    }


def _version(row: PromptTemplateVersion) -> Spec:
    shown: Spec = {"version": row.version, "status": str(row.status), "segments": row.segments}
    if row.accepted_lints:
        shown["accepted_lints"] = row.accepted_lints
    return shown | ({"public": True} if row.is_public else {})


def _checked(versions: list[Any]) -> None:
    for index, each in enumerate(versions):
        where = f"versions.{index}"
        if not isinstance(each, dict) or each.get("version") != index + 1:
            raise Invalid.field(where, "versions are mappings, numbered from 1 without gaps")
        unknown = sorted(each.keys() - VERSION_KEYS)
        if unknown:
            raise Invalid.field(f"{where}.{unknown[0]}", "there is no such field")
        if each.get("status") not in ORDER:
            raise Invalid.field(f"{where}.status", f"must be one of {', '.join(ORDER)}")


def _create(name: str, wanted: Spec, change: Change) -> None:
    tenant, _, slug = name.partition("/")
    create_template(actor=change.actor, tenant=tenant, slug=slug, name=wanted["name"])
    _checked(wanted["versions"])
    allowed = (change.sealed_for("PromptTemplate", name) or {}).get("public", [])
    for each in wanted["versions"]:
        _bring(name, each, None, change, allowed=allowed)


def _update(name: str, wanted: Spec, current: Spec, change: Change) -> None:
    _checked(wanted["versions"])
    if wanted["name"] != current["name"]:
        raise Conflict("a template keeps its name")
    if len(wanted["versions"]) < len(current["versions"]):
        raise Conflict(f"it has {len(current['versions'])} versions: retire one, it is never deleted")
    for index, each in enumerate(wanted["versions"]):
        known = current["versions"][index] if index < len(current["versions"]) else None
        if each != known:
            _bring(name, each, known, change, allowed=[])


def _bring(name: str, wanted: Spec, known: Spec | None, change: Change, *, allowed: list[int]) -> None:
    """One version to where the file wants it, step by step as a person would."""
    number, actor = wanted["version"], change.actor
    stage = ORDER.index(known["status"]) if known else 0
    if known is None:
        draft_version(actor=actor, template=name, segments=wanted.get("segments", []))
    elif wanted.get("segments") != known["segments"]:
        if stage:
            raise Conflict(f"version {number} was published and never changes: add a version")
        edit_draft(actor=actor, template=name, version=number, segments=wanted.get("segments", []))
    goal = ORDER.index(wanted["status"])
    if goal < stage:
        raise Conflict(f"version {number} is {ORDER[stage]} and does not go back")
    if stage < 1 <= goal:
        accepted = wanted.get("accepted_lints", [])
        publish_version(actor=actor, template=name, version=number, accept=accepted, reason=change.reason)
    _bring_public(name, wanted, known, change, allowed=allowed)
    if stage < 2 <= goal:
        retire_version(actor=actor, template=name, version=number, reason=change.reason)


def _bring_public(name: str, wanted: Spec, known: Spec | None, change: Change, *, allowed: list[int]) -> None:
    number, is_public = wanted["version"], bool(known and known.get("public"))
    if bool(wanted.get("public")) == is_public:
        return
    if is_public:
        withdraw_public(actor=change.actor, template=name, version=number, reason=change.reason)
    elif number in allowed:
        tenant, _, slug = name.partition("/")
        rows = PromptTemplateVersion.objects.select_related("template__tenant")
        row = rows.get(template__tenant__slug=tenant, template__slug=slug, version=number)
        restore(row, {"is_public": True}, object_type="template", object_id=f"{name}@{number}", change=change)
    else:
        raise Conflict("a public text needs two persons: apply it without, then propose it")


def _remove(name: str, change: Change) -> None:
    tenant, _, slug = name.partition("/")
    rows = PromptTemplateVersion.objects.filter(template__tenant__slug=tenant, template__slug=slug, status="published")
    for number in rows.order_by("version").values_list("version", flat=True):
        retire_version(actor=change.actor, template=name, version=number, reason=change.reason)


def _is_gone(spec: Spec) -> bool:
    return all(each["status"] != "published" for each in spec["versions"])


def _seal() -> dict[str, Spec]:
    found: dict[str, Spec] = {}
    rows = PromptTemplateVersion.objects.filter(is_public=True).select_related("template__tenant")
    for row in rows.order_by("version"):
        found.setdefault(str(row.template), {"public": []})["public"].append(row.version)
    return found


TEMPLATES = Kind(
    "PromptTemplate", "template", FIELDS, _read, _create, _update, _remove, is_gone=_is_gone, seal=_seal
)  # fmt: skip
