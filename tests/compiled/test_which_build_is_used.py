"""A build is used for exactly the sources it was made from, and for no others."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from router.native import finder, modules

ROOT = Path(__file__).parents[2]


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the compiled modules' sources, and a folder of builds of its own."""
    for module in modules.MODULES:
        copy = tmp_path / "src" / modules.source_of(module).relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(modules.source_of(module).read_bytes())
    monkeypatch.setattr(modules, "ROOT", tmp_path / "src")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    return tmp_path / "src"


def pretend_to_build() -> None:
    modules.build_folder().mkdir(parents=True)
    (modules.build_folder() / "manifest.json").write_text("{}")


def without_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in modules.MODULES:
        monkeypatch.delitem(sys.modules, module, raising=False)


def test_an_edited_source_has_no_build(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_to_build()
    without_imports(monkeypatch)
    source = sources / "router/core/score.py"
    source.write_text(source.read_text() + "\n")
    assert finder.use_compiled("auto") is False
    with pytest.raises(finder.NotCompiled, match="not compiled for these sources"):
        finder.use_compiled("require")
    assert finder.code_in_use() == "interpreted"


def test_the_build_of_these_very_sources_is_used(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_to_build()
    without_imports(monkeypatch)
    assert finder.use_compiled("auto") is True
    assert finder.code_in_use() == "compiled"
    found = sys.meta_path[0].find_spec("router.core.score")
    assert found is not None and Path(str(found.origin)).is_relative_to(modules.build_folder())
    assert sys.meta_path[0].find_spec("router.core.exact.chains") is None


def test_off_uses_no_build(sources: Path) -> None:
    pretend_to_build()
    assert finder.use_compiled("off") is False


def test_a_module_imported_too_early_is_a_mistake(sources: Path) -> None:
    import router.core.score  # noqa: F401

    pretend_to_build()
    with pytest.raises(RuntimeError, match=r"router\.core\.score"):
        finder.use_compiled("auto")


def run_elsewhere(prefix: Path, module: str, *arguments: str, **environment: str) -> tuple[int, str, str]:
    """`python -m module` with the builds of another environment; (status, standard output, standard error)."""
    program = f"import sys, runpy; sys.prefix = {str(prefix)!r}; runpy.run_module({module!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    return done.returncode, done.stdout, done.stderr


def test_a_router_that_requires_a_build_does_not_start_without(tmp_path: Path) -> None:
    settings = {"TIDEMARK_FLEET_KEY": "ab" * 32, "TIDEMARK_ROUTER_COMPILED": "require"}
    status, _, err = run_elsewhere(tmp_path, "router", **settings)
    assert status == 2
    assert err.startswith("router: the hot modules are not compiled for these sources")


def test_without_a_compiler_it_says_so_and_succeeds(tmp_path: Path) -> None:
    said = run_elsewhere(tmp_path, "router.native", "build", PATH=str(tmp_path))
    assert said == (0, "router: stays interpreted, there is no C compiler\n", "")


@pytest.mark.parametrize("module", modules.MODULES)
def test_no_compiled_module_defines_what_mypyc_gets_wrong(module: str) -> None:
    """Structs lose their metaclass's arguments; an exception's class attributes are not set."""
    for node in ast.walk(ast.parse(modules.source_of(module).read_text())):
        if isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base) for base in node.bases]
            assert not any("Struct" in base for base in bases), node.name
            if any("Exception" in base or "Error" in base for base in bases):
                plain = [each for each in node.body if isinstance(each, ast.Assign)]
                assert not plain, f"{node.name}: a class attribute of an exception must be a ClassVar"
