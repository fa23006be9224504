"""Documents of a file: YAML ↔ (kind, name, manager, spec), each with the lines it came from.

Written so that equal content gives equal bytes: keys sorted, defaults left out, one line for each value, and texts of
several lines as blocks. Read strictly: no anchors, no repeated or unknown keys, no types but JSON's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from controlplane.errors import Invalid

API_VERSION = "tidemark/v1"
FILE_BYTES_MAX = 64 * 1024 * 1024
"""As much as a snapshot may have."""
DEPTH_MAX = 20
MANAGER_LENGTH_MAX = 100
MANAGED_BY = "managed-by"

Spec = dict[str, Any]
"""Field → JSON value. Any: the kinds say what each may be."""


class FileError(Invalid):
    """What is wrong with a file; the message begins with file and line."""


@dataclass(frozen=True, slots=True)
class Document:
    kind: str
    name: str
    spec: Spec
    manager: str = ""
    file: str = field(default="", compare=False)
    lines: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)
    """Dotted path, from 1: `spec.priority`."""

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.name

    def error(self, message: str, path: str = "") -> FileError:
        """At the deepest part of `path` that the file has."""
        where = path
        while where and where not in self.lines:
            where = where.rpartition(".")[0]
        line = self.lines.get(where) or self.lines.get("", 1)
        shown = f"{path.removeprefix('spec.')}: " if path else ""
        return FileError(f"{self.file}:{line}: {self.kind} {self.name}: {shown}{message}")


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # libyaml's is ten times faster
    """Dates stay texts: JSON has none."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in pairs if tag != "tag:yaml.org,2002:timestamp"]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def dump(documents: Iterable[Document]) -> str:
    return yaml.dump_all(
        [_as_mapping(document) for document in documents],
        Dumper=_Dumper, explicit_start=True, sort_keys=True, allow_unicode=True, width=1_000_000,
    )  # fmt: skip


def _as_mapping(document: Document) -> dict[str, object]:
    metadata = {"name": document.name, **({MANAGED_BY: document.manager} if document.manager else {})}
    return {"apiVersion": API_VERSION, "kind": document.kind, "metadata": metadata, "spec": document.spec}


def parse(text: str, *, file: str) -> list[Document]:
    """Raises FileError."""
    if len(text.encode("utf-8", "surrogatepass")) > FILE_BYTES_MAX:
        raise FileError(f"{file}: a file has at most {FILE_BYTES_MAX} bytes")
    try:
        nodes = [node for node in yaml.compose_all(text, Loader=_Loader) if node is not None]
        documents = [_document(node, file) for node in nodes if not _is_empty(node)]
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise FileError(f"{file}:{line}: {error.problem or 'not YAML'}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise FileError(f"{file}: not YAML: {type(error).__name__}") from None
    _refuse_repeats(documents)
    return documents


def _is_empty(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and not node.value


def _document(node: yaml.Node, file: str) -> Document:
    lines: dict[str, int] = {"": node.start_mark.line + 1}
    content = _Reader(file, lines).value(node, "", 0)
    if not isinstance(content, dict):
        raise FileError(f"{file}:{lines['']}: a document is a mapping with apiVersion, kind, metadata and spec")
    metadata, spec = content.get("metadata"), content.get("spec", {})
    metadata = metadata if isinstance(metadata, dict) else {}
    kind, name, manager = content.get("kind"), metadata.get("name"), metadata.get(MANAGED_BY, "")
    found = Document(str(kind), str(name), spec if isinstance(spec, dict) else {}, str(manager), file, lines)
    if content.get("apiVersion") != API_VERSION:
        raise found.error(f"apiVersion must be {API_VERSION}", "apiVersion")
    if not isinstance(kind, str) or not isinstance(name, str) or not name:
        raise found.error("kind and metadata.name are texts", "metadata.name")
    if not isinstance(manager, str) or len(manager) > MANAGER_LENGTH_MAX or not manager.isprintable():
        raise found.error(f"a text of at most {MANAGER_LENGTH_MAX} characters", f"metadata.{MANAGED_BY}")
    if not isinstance(spec, dict):
        raise found.error("spec is a mapping", "spec")
    unknown = [*sorted(content.keys() - {"apiVersion", "kind", "metadata", "spec"})]
    unknown += [f"metadata.{key}" for key in sorted(metadata.keys() - {"name", MANAGED_BY})]
    if unknown:
        raise found.error("there is no such field", unknown[0])
    return found


class _Reader:
    """Nodes → JSON values; notes the line of each."""

    def __init__(self, file: str, lines: dict[str, int]) -> None:
        self._file, self._lines = file, lines
        self._seen: set[int] = set()
        self._scalars = _Loader("")

    def value(self, node: yaml.Node, path: str, depth: int) -> Any:
        if id(node) in self._seen:
            raise self._fault(node, "anchors and aliases are not followed")
        if depth > DEPTH_MAX:
            raise self._fault(node, f"nested more than {DEPTH_MAX} deep")
        self._seen.add(id(node))
        self._lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, f"{path}.{index}", depth + 1) for index, item in enumerate(node.value)]
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, path: str, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None or key in found:
                raise self._fault(key_node, "keys are texts" if key is None else f"{key!r} is there twice")
            where = f"{path}.{key}" if path else key
            self._lines[where] = key_node.start_mark.line + 1
            found[key] = self.value(value_node, where, depth + 1)
        return found

    def _scalar(self, node: yaml.Node) -> Any:
        value = self._scalars.construct_object(node)
        if not isinstance(value, str | int | float | bool | None):
            raise self._fault(node, "only texts, numbers, true, false and null")
        if isinstance(value, float) and not (value == value and abs(value) != float("inf")):
            raise self._fault(node, "not a finite number")
        return value

    def _fault(self, node: yaml.Node, message: str) -> FileError:
        return FileError(f"{self._file}:{node.start_mark.line + 1}: {message}")


def _refuse_repeats(documents: Iterable[Document]) -> None:
    seen: set[tuple[str, str]] = set()
    for document in documents:
        if document.key in seen:
            raise document.error("is in the file twice", "metadata.name")
        seen.add(document.key)
