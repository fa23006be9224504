"""What the palette finds: pages, saved views, tenants, namespaces, workers, pools, templates, requests.

Each kind is asked only where the caller holds its capability, so that a foreign name is as absent as one that does not
exist. A kind costs one query and gives at most HITS_MAX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from django.db.models import Max, Model, Q, QuerySet
from django.urls import reverse

from controlplane.fleet.models import Worker, WorkerPool
from controlplane.namespaces.models import ApiKey, CacheNamespace
from controlplane.prompts.models import PromptTemplate
from controlplane.telemetry.models import DecisionRecord
from controlplane.tenants.models import Tenant, User
from controlplane.tenants.roles import Access, Capability
from controlplane.workspace.models import SavedView
from dashboard.rail import RAIL
from dashboard.scope import OF_ONE_PAGE, PageState
from dashboard.secrets import without_secrets

HITS_MAX = 6
TEXT_MAX = 100
KEY_START = "tm_"
REQUEST_TEXT_MIN = 4
"""Fewer characters would be the beginning of every request id."""


@dataclass(frozen=True, slots=True)
class Hit:
    label: str
    href: str
    note: str = ""
    icon: str = "chevron-right"


@dataclass(frozen=True, slots=True)
class Group:
    title: str
    hits: list[Hit]


def search(text: str, *, user: User, state: PageState) -> list[Group]:
    """The kinds in which anything was found, pages first. An empty text gives pages and saved views."""
    text = plain(text)
    kinds: list[tuple[str, Callable[[str, User, PageState], Iterable[Hit]]]] = [
        ("Pages", _pages),
        ("Saved views", _saved_views),
    ]
    if text.startswith(KEY_START):
        kinds = [("Keys", _keys)]
    elif text:
        kinds += [
            ("Tenants", _tenants),
            ("Namespaces", _namespaces),
            ("Workers", _workers),
            ("Pools", _pools),
            ("Templates", _templates),
            ("Requests", _requests),
        ]
    groups = [Group(title, list(find(text, user, state))) for title, find in kinds]
    return [group for group in groups if group.hits]


def names(kind: str, text: str, *, user: User) -> list[str]:
    """Completions of a field of the scope: `tenant`, `ns`, `model`, `pool` or `worker`; others have none."""
    find = _NAMES.get(kind)
    return [name for name in find(plain(text), user.access) if name] if find else []


def plain(text: str) -> str:
    """What databases can look for: not too long, no NUL; of a key its id alone."""
    return without_secrets(text.replace("\x00", "").strip())[:TEXT_MAX]


def _pages(text: str, user: User, state: PageState) -> Iterable[Hit]:
    for item in RAIL:
        if item.shown_to(user.access) and text.lower() in item.label.lower():
            yield Hit(item.label, f"{item.path}?{state.across()}", f"g {item.key}", item.icon)


def _saved_views(text: str, user: User, state: PageState) -> Iterable[Hit]:
    for view in SavedView.objects.filter(user=user, name__icontains=text)[: HITS_MAX * 2]:
        yield Hit(view.name, view.address, "default" if view.is_default else view.path, "bookmark")


def _tenants(text: str, user: User, state: PageState) -> Iterable[Hit]:
    for slug, name in _in_tenants(user.access, text).values_list("slug", "name")[:HITS_MAX]:
        yield Hit(slug, f"{reverse('tenant', args=[slug])}?{state.across()}", name, "users")


def _namespaces(text: str, user: User, state: PageState) -> Iterable[Hit]:
    for tenant, slug in _in_namespaces(user.access, text).values_list("tenant__slug", "slug")[:HITS_MAX]:
        path = reverse("namespace", args=[tenant, slug])
        yield Hit(f"{tenant}/{slug}", f"{path}?{state.across()}", "", "stack-2")


def _keys(text: str, user: User, state: PageState) -> Iterable[Hit]:
    """The namespace of a key that is named as a log or a person names it, whole id."""
    rows = ApiKey.objects.filter(key_id=text.removeprefix(KEY_START).rstrip("…").partition("_")[0])
    rows = _of_tenants(rows, user.access, Capability.KEYS_VIEW, "namespace__tenant__slug__in")
    for key_id, name, tenant, slug in rows.values_list("key_id", "name", "namespace__tenant__slug", "namespace__slug"):
        path = reverse("namespace", args=[tenant, slug])
        yield Hit(f"{KEY_START}{key_id}_…", f"{path}?{state.across()}", f"{tenant}/{slug}: {name}", "key")


def _workers(text: str, user: User, state: PageState) -> Iterable[Hit]:
    for pool, slug, wanted in _in_workers(user.access, text).values_list("pool__slug", "slug", "state")[:HITS_MAX]:
        yield Hit(
            f"{pool}/{slug}", f"{reverse('worker', args=[f'{pool}/{slug}'])}?{state.across()}", wanted, "server-2"
        )


def _pools(text: str, user: User, state: PageState) -> Iterable[Hit]:
    for slug in _in_pools(user.access, text).values_list("slug", flat=True)[:HITS_MAX]:
        yield Hit(
            slug,
            f"/?{state.query(pool=slug, **dict.fromkeys(OF_ONE_PAGE, ''))}",
            "the fleet page, of this pool",
            "server-2",
        )


def _templates(text: str, user: User, state: PageState) -> Iterable[Hit]:
    rows = PromptTemplate.objects.filter(_matching(text, "tenant__slug", "slug"))
    rows = _of_tenants(rows, user.access, Capability.TEMPLATES_VIEW, "tenant__slug__in")
    newest = rows.annotate(newest=Max("versions__version")).exclude(newest=None)
    for tenant, slug, version in newest.values_list("tenant__slug", "slug", "newest")[:HITS_MAX]:
        path = reverse("template-version", args=[tenant, slug, version])
        yield Hit(f"{tenant}/{slug}", f"{path}?{state.across()}", f"version {version}", "template")


def _requests(text: str, user: User, state: PageState) -> Iterable[Hit]:
    if len(text) < REQUEST_TEXT_MIN:
        return
    rows = DecisionRecord.objects.filter(request_id__startswith=text)
    rows = _of_tenants(rows, user.access, Capability.REQUESTS_VIEW, "tenant__in")
    for request_id, namespace in rows.order_by("request_id").values_list("request_id", "namespace")[:HITS_MAX]:
        yield Hit(request_id, f"{reverse('decision', args=[request_id])}?{state.across()}", namespace, "route")


def _in_tenants(access: Access, text: str) -> QuerySet[Tenant]:
    rows = Tenant.objects.filter(_matching(text, "slug", "name")).order_by("slug")
    return _of_tenants(rows, access, Capability.TENANTS_VIEW, "slug__in")


def _in_namespaces(access: Access, text: str) -> QuerySet[CacheNamespace]:
    rows = CacheNamespace.objects.filter(_matching(text, "tenant__slug", "slug")).order_by("tenant__slug", "slug")
    return _of_tenants(rows, access, Capability.NAMESPACES_VIEW, "tenant__slug__in")


def _in_workers(access: Access, text: str) -> QuerySet[Worker]:
    rows = Worker.objects.filter(_matching(text, "pool__slug", "slug")).order_by("pool__slug", "slug")
    return rows if access.may(Capability.FLEET_VIEW) else rows.none()


def _in_pools(access: Access, text: str) -> QuerySet[WorkerPool]:
    rows = WorkerPool.objects.filter(slug__icontains=text).order_by("slug")
    return rows if access.may(Capability.FLEET_VIEW) else rows.none()


def _matching(text: str, *path: str) -> Q:
    """Rows one of whose names holds the text; `acme/su` matches an `acme` with a part that begins with `su`."""
    first, slash, second = text.partition("/")
    if slash and len(path) > 1:
        return Q(**{path[0]: first, f"{path[1]}__istartswith": second})
    found = Q()
    for name in path:
        found |= Q(**{f"{name}__icontains": text})
    return found


def _of_tenants[Row: Model](rows: QuerySet[Row], access: Access, capability: Capability, field: str) -> QuerySet[Row]:
    own = access.tenants(capability)
    return rows if own is None else rows.filter(**{field: own})


def _pairs(rows: Iterable[tuple[str, str]]) -> list[str]:
    return [f"{first}/{second}" for first, second in rows]


_NAMES: dict[str, Callable[[str, Access], list[str]]] = {
    "tenant": lambda text, access: list(_in_tenants(access, text).values_list("slug", flat=True)[:HITS_MAX]),
    "ns": lambda text, access: _pairs(_in_namespaces(access, text).values_list("tenant__slug", "slug")[:HITS_MAX]),
    "worker": lambda text, access: _pairs(_in_workers(access, text).values_list("pool__slug", "slug")[:HITS_MAX]),
    "pool": lambda text, access: list(_in_pools(access, text).values_list("slug", flat=True)[:HITS_MAX]),
    "model": lambda text, access: list(
        _in_pools(access, "").filter(models__name__icontains=text).values_list("models__name", flat=True)[:HITS_MAX]
    ),
}
