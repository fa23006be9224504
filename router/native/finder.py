"""Makes this process import the compiled modules. Call it before the first of them is imported."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Literal

from router.native.modules import GROUP, MODULES, build_folder, library_of

Mode = Literal["auto", "off", "require"]
"""`auto`: compiled where a build fits the sources; `require`: or not at all."""
Code = Literal["compiled", "interpreted"]


class NotCompiled(Exception):
    """A build is required and there is none for these sources."""


class CompiledFinder:
    """Finds the modules of one build, ahead of their sources."""

    def __init__(self, folder: Path) -> None:
        names = (*MODULES, f"{GROUP}__mypyc")
        self._libraries = {name: str(library_of(folder, name)) for name in names}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        library = self._libraries.get(fullname)
        return None if library is None else importlib.util.spec_from_file_location(fullname, library)


def use_compiled(mode: Mode) -> bool:
    """Whether the hot modules are compiled from here on. Raises NotCompiled."""
    if mode == "off":
        return False
    if not (build_folder() / "manifest.json").exists():
        if mode == "require":
            raise NotCompiled("the hot modules are not compiled for these sources: python -m router.native build")
        return False
    early = [name for name in MODULES if name in sys.modules]
    if early:
        raise RuntimeError(f"imported before the compiled modules were asked for: {', '.join(early)}")
    sys.meta_path.insert(0, CompiledFinder(build_folder()))
    return True


def code_in_use() -> Code:
    """What this process serves with."""
    return "compiled" if any(isinstance(finder, CompiledFinder) for finder in sys.meta_path) else "interpreted"
