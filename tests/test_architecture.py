"""The import direction of the whole tree, read from the source: lower layers never know of higher ones."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("router", "controlplane", "dashboard", "simulator", "benchmarks")

APPS_BELOW = {
    "audit": set(),
    "approvals": {"audit"},
    "revocations": {"audit"},
    "tenants": {"audit", "revocations"},
    "idempotency": set(),
    "namespaces": {"audit", "approvals", "revocations", "tenants"},
    "fleet": {"audit", "revocations", "tenants"},
    "prompts": {"audit", "approvals", "tenants", "namespaces", "fleet"},
    "policies": {"audit", "approvals", "tenants", "namespaces", "fleet"},
    "placements": {"audit", "tenants", "namespaces", "fleet"},
    "snapshots": {"audit", "revocations", "tenants", "namespaces", "prompts", "fleet", "policies", "placements"},
    "telemetry": {"audit", "tenants", "fleet"},
    "rollouts": {"audit", "policies", "snapshots", "telemetry", "what_if"},
    "deadletters": {"audit", "fleet"},
    "isolation": {"audit", "deadletters", "approvals", "tenants", "fleet", "telemetry"},
    "alerts": {"audit", "deadletters", "tenants", "fleet", "snapshots", "telemetry", "isolation"},
    "checklist": {"fleet", "isolation", "prompts", "telemetry"},
    "webhooks": {"alerts", "audit", "revocations", "tenants", "fleet", "isolation"},
    "onboarding": {"approvals", "tenants", "namespaces", "policies"},
    "declarative": {
        "audit",
        "tenants",
        "namespaces",
        "prompts",
        "fleet",
        "policies",
        "snapshots",
        "onboarding",
        "alerts",
        "webhooks",
        "reports",
    },
    "workspace": {"audit", "tenants"},
    "reports": {
        "audit",
        "tenants",
        "namespaces",
        "fleet",
        "policies",
        "telemetry",
        "isolation",
        "webhooks",
        "deadletters",
    },
    "what_if": {"audit", "tenants", "namespaces", "fleet", "policies", "telemetry"},
}
"""App → apps it may import. `api` and `dashboard` may import all of them; nobody may import those two."""

SHARED_MODULES = {"errors", "saving", "config", "settings", "outbox", "row_sets"}
"""Modules of `controlplane` itself that any app may import; they import no app."""

ROUTER_MAY_IMPORT = {
    "contract": set(),
    "core": {"contract"},
    "http": {"contract", "core", "adapters"},
    "call": {"contract", "core", "http"},
    "partners": {"contract", "core", "http", "call"},
    "service": {"contract", "core", "http", "call", "partners"},
    "adapters": {"contract", "core", "call"},
}
"""Layer of the router → layers it may import. `runtime` puts them together; none of them knows it."""

ROUTER_EDGE_MODULES = {"config", "logs", "integrations"}
"""Beside the layers at the edge; contract and core know none of them."""

CORE_BANNED = {"asyncio", "socket", "time", "os", "secrets", "threading", "datetime", "logging"}
"""Awaiting, clocks, environment: handed in, never called, in the routing core (style 10, 14)."""

HTTP_LIBRARIES = {"requests", "urllib3", "aiohttp", "http.client", "urllib.request"}


def _files(*parts: str) -> list[Path]:
    base = ROOT.joinpath(*parts)
    return sorted(base.rglob("*.py")) if base.is_dir() else [base.with_suffix(".py")]


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    """(dotted name, line) of everything a file imports, inside functions too, `import_string` paths left out."""
    tree = ast.parse(path.read_text(), filename=str(path))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((name.name, node.lineno) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(path, node)
            yield base, node.lineno
            yield from ((f"{base}.{name.name}", node.lineno) for name in node.names)


def _absolute(path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = list(path.relative_to(ROOT).parent.parts)
    return ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])


def _within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def _offences(files: list[Path], is_wrong) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in files
        for name, line in _imports(path)
        if is_wrong(name)
    ]


def _app_of(name: str) -> str | None:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "controlplane" else None


def test_the_check_sees_imports_in_functions_and_relative_ones(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    file = tmp_path / "router" / "core" / "x.py"
    file.parent.mkdir(parents=True)
    file.write_text("def f():\n    import time\n    from ..http import relay\n")
    assert {name for name, _ in _imports(file)} == {"time", "router.http", "router.http.relay"}


def test_the_router_never_imports_the_control_plane() -> None:
    foreign = ("django", "rest_framework", "celery", "channels", "controlplane", "dashboard", "simulator")
    assert not _offences(_files("router"), lambda name: any(_within(name, package) for package in foreign))


def test_the_contract_is_the_standard_library_and_msgspec() -> None:
    allowed = {*sys.stdlib_module_names, "msgspec", "__future__"}
    files = _files("router", "contract")
    assert files
    assert not _offences(files, lambda name: name.split(".")[0] not in allowed and not _within(name, "router.contract"))


def test_the_core_neither_awaits_nor_reads_clocks_or_the_environment() -> None:
    files = _files("router", "core")
    assert files
    assert not _offences(files, lambda name: name.split(".")[0] in CORE_BANNED)
    waiting = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith)
    ]
    assert not waiting


def test_the_core_draws_only_from_randomness_handed_in() -> None:
    """`random.Random` names the type of what is handed in; calling the module would be the core's own dice."""
    calls = [
        f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node.func)}"
        for path in _files("router", "core")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("random.")
    ]
    drawn = _offences(_files("router", "core"), lambda name: name.startswith("random.") and name != "random.Random")
    assert not calls + drawn


@pytest.mark.parametrize("layer", ROUTER_MAY_IMPORT)
def test_a_router_layer_imports_only_what_it_may(layer: str) -> None:
    names = {layer} | ROUTER_MAY_IMPORT[layer] | (set() if layer in ("contract", "core") else ROUTER_EDGE_MODULES)
    allowed = {f"router.{name}" for name in names}

    def is_wrong(name: str) -> bool:
        return name.startswith("router.") and not any(_within(name, package) for package in allowed)

    assert not _offences(_files("router", layer), is_wrong)


@pytest.mark.parametrize("app", [app for app in APPS_BELOW if (ROOT / "controlplane" / app).is_dir()])
def test_an_app_imports_only_apps_below_it(app: str) -> None:
    allowed = APPS_BELOW[app] | SHARED_MODULES | {app}
    files = [path for path in _files("controlplane", app) if "migrations" not in path.parts]

    def is_wrong(name: str) -> bool:
        target = _app_of(name)
        return _within(name, "dashboard") or (target is not None and target not in allowed)

    assert not _offences(files, is_wrong)


def test_every_app_has_its_place_in_the_order() -> None:
    apps = {path.parent.name for path in (ROOT / "controlplane").glob("*/apps.py")}
    assert apps - set(APPS_BELOW) - {"api", "demo", "supervisor"} == set()


def test_shared_modules_import_no_app() -> None:
    files = [ROOT / "controlplane" / f"{name}.py" for name in SHARED_MODULES]
    assert not _offences(files, lambda name: _app_of(name) in {*APPS_BELOW, "api"})


def test_the_api_and_the_dashboard_do_not_import_each_other() -> None:
    assert not _offences(_files("controlplane", "api"), lambda name: _within(name, "dashboard"))
    assert not _offences(_files("dashboard"), lambda name: _within(name, "controlplane.api"))


def test_the_simulator_knows_the_contract_and_the_core_only() -> None:
    """And `router.native.finder`: its core is the one that routes, compiled where that one is."""

    def is_wrong(name: str) -> bool:
        if any(_within(name, package) for package in ("django", "controlplane", "dashboard")):
            return True
        return name.startswith("router.") and not any(
            _within(name, package) for package in ("router.contract", "router.core", "router.native.finder")
        )

    assert not _offences(_files("simulator"), is_wrong)


def test_the_control_plane_calls_out_with_httpx_only() -> None:
    files = _files("controlplane") + _files("dashboard")

    def is_wrong(name: str) -> bool:
        return any(_within(name, library) for library in HTTP_LIBRARIES)

    assert not _offences(files, is_wrong)


def test_the_control_plane_uses_of_the_router_what_is_pure() -> None:
    files = _files("controlplane") + _files("dashboard")

    def is_wrong(name: str) -> bool:
        return name.startswith("router.") and not any(
            _within(name, package) for package in ("router.contract", "router.core", "router.native.finder")
        )

    assert not _offences(files, is_wrong)


def test_tasks_take_ids_not_objects() -> None:
    """JSON is what travels (S20): every argument of a task is a number, a text or a list of those."""
    plain = {"int", "str", "float", "bool", "list[int]", "list[str]", "Sequence[int]", "Sequence[str]", "None"}
    wrong = []
    for path in (ROOT / "controlplane").glob("*/tasks.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef) or not any(_is_task(item) for item in node.decorator_list):
                continue
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            for argument in arguments:
                annotation = ast.unparse(argument.annotation) if argument.annotation else "nothing"
                bound_self = argument.arg == "self"
                if not bound_self and set(annotation.split(" | ")) - plain:
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} {argument.arg}: {annotation}")
    assert not wrong


def _is_task(decorator: ast.expr) -> bool:
    return "shared_task" in ast.unparse(decorator) or ast.unparse(decorator).startswith("app.task")


def test_models_are_written_by_services_not_by_views() -> None:
    """Views, consumers and tasks translate; `.save(`, `.create(`, `.delete()` on rows belong to services (style 15)."""
    writers = {"save", "create", "bulk_create", "update_or_create", "get_or_create", "delete"}
    files = [path for path in (*_files("controlplane", "api"), *_files("dashboard")) if "migrations" not in path.parts]
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} .objects….{node.func.attr}("
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in writers
        and ".objects" in ast.unparse(node.func.value)
    ]
    assert not wrong
