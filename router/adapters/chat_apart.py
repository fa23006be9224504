"""Chat templates that render each message by itself, and the same templates told to say where each message begins.

    {{ front }}{% for message in messages %}▮{{ message… }}{% endfor %}▮{{ end }}        ▮ a mark of the caller's

Of such a template a longer conversation's text is the shorter one's, without its end, and the further messages' own.
That is decided from the syntax tree, and for certain: one loop over `messages` at the top, nothing else reads them,
the body knows its place by `loop.first` or its equivalents at most, and all else is on lists of what keeps no state
from one round to the next and gives the same at any time. A template with anything else is rendered whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from jinja2 import nodes

_NODES: Final = (
    nodes.Output, nodes.TemplateData, nodes.Const, nodes.Name, nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.If,
    nodes.CondExpr, nodes.Assign, nodes.For, nodes.Compare, nodes.Operand, nodes.BinExpr, nodes.UnaryExpr, nodes.Concat,
    nodes.Test, nodes.Filter, nodes.Call, nodes.Keyword, nodes.List, nodes.Tuple, nodes.Dict, nodes.Pair,
    nodes.Continue,
)  # fmt: skip
_FILTERS: Final = frozenset((
    "abs", "capitalize", "d", "default", "first", "float", "indent", "int", "join", "last", "length", "list", "lower",
    "replace", "string", "title", "tojson", "trim", "upper",
))  # fmt: skip
"""Filters whose values are no iterators: one that a round takes from would be shorter in the next."""
_TESTS: Final = frozenset((
    "boolean", "defined", "divisibleby", "eq", "equalto", "even", "false", "float", "ge", "gt", "in", "integer",
    "iterable", "le", "lower", "lt", "mapping", "ne", "none", "number", "odd", "sequence", "string", "true",
    "undefined", "upper",
))  # fmt: skip
_METHODS: Final = frozenset((
    "endswith", "get", "items", "keys", "lower", "lstrip", "replace", "rsplit", "rstrip", "split", "startswith",
    "strip", "title", "upper", "values",
))  # fmt: skip
"""Methods of texts and mappings without effects."""
_FUNCTIONS: Final = frozenset(("raise_exception",))
_STATEFUL: Final = frozenset(("caller", "cycler", "joiner", "lipsum", "namespace", "range", "self", "strftime_now"))
"""Names of what remembers, is another thing at another time, or reaches the template from behind."""
_FIRST: Final = {"index0": 0, "index": 1}
"""A loop's counters and their values in the first round."""


def told_apart(template: nodes.Template, mark: str) -> nodes.Template | None:
    """The template with `mark` put out in front of each message and behind the last; None where messages may depend on
    each other. Changes the tree that it is given."""
    loop = _free_loop(template)
    if loop is None:
        return None
    template.body.insert(template.body.index(loop) + 1, _put_out(mark, loop.lineno))
    loop.body.insert(0, _put_out(mark, loop.lineno))
    return template


def says_verbatim(template: nodes.Template) -> bool:
    """Whether a message's content goes into its text as it is and decides nothing else of it."""
    loop = _free_loop(template)
    if loop is None:
        return False
    assert isinstance(loop.target, nodes.Name)
    message = loop.target.name
    reads: list[nodes.Getattr | nodes.Getitem] = [*loop.find_all(nodes.Getattr), *loop.find_all(nodes.Getitem)]
    fields = [(field, _key(field)) for field in reads]
    whole = {id(name) for name in _names(loop, message)} - {id(loop.target)}
    if whole - {id(field.node) for field, key in fields if key is not None}:
        return False
    contents = {id(field) for field, key in fields if key == "content"}
    return contents <= {id(part) for put_out in loop.find_all(nodes.Output) for part in _summands(put_out.nodes)}


def _key(field: nodes.Getattr | nodes.Getitem) -> str | None:
    """What is read of a mapping, where that is a fixed name and no method, which might read anything."""
    if isinstance(field, nodes.Getattr):
        return None if field.attr in _METHODS else field.attr
    return field.arg.value if isinstance(field.arg, nodes.Const) and isinstance(field.arg.value, str) else None


def _summands(values: Sequence[nodes.Expr]) -> Iterator[nodes.Expr]:
    """The values themselves and what they are joined from."""
    for value in values:
        yield value
        if isinstance(value, nodes.Concat):
            yield from _summands(value.nodes)
        elif isinstance(value, nodes.Add):
            yield from _summands([value.left, value.right])


def _free_loop(template: nodes.Template) -> nodes.For | None:
    """The one over messages, where no round of it depends on another."""
    loops = [node for node in template.body if isinstance(node, nodes.For) and _is_over_messages(node, template)]
    return loops[0] if len(loops) == 1 and _is_free(template, loops[0]) else None


def _put_out(text: str, lineno: int) -> nodes.Output:
    return nodes.Output([nodes.TemplateData(text, lineno=lineno)], lineno=lineno)


def _is_over_messages(loop: nodes.For, template: nodes.Template) -> bool:
    names = {"messages", *_aliases(template)}
    plain = loop.test is None and not loop.else_ and not loop.recursive and isinstance(loop.target, nodes.Name)
    return plain and isinstance(loop.iter, nodes.Name) and loop.iter.name in names


def _aliases(template: nodes.Template) -> Iterator[str]:
    """Other names of the whole conversation, set at the top."""
    for node in template.body:
        if _is_alias(node):
            yield node.target.name  # type: ignore[attr-defined]


def _is_alias(node: nodes.Node) -> bool:
    return (
        isinstance(node, nodes.Assign)
        and isinstance(node.target, nodes.Name)
        and isinstance(node.node, nodes.Name)
        and node.node.name == "messages"
    )


def _is_free(template: nodes.Template, loop: nodes.For) -> bool:
    """Whether what a round of the loop puts out is decided by its message, its being the first, and the arguments."""
    uses = [node for node in template.find_all(nodes.Node) if isinstance(node, nodes.Name)]
    conversation = {"messages", *_aliases(template)}
    allowed = {id(loop.iter), *(id(part) for node in template.body if _is_alias(node) for part in _sides(node))}
    if any(use.name in conversation and id(use) not in allowed for use in uses):
        return False
    if any(use.name in _STATEFUL for use in uses):
        return False
    places = set(_first_round_only(loop))
    inner = {id(name) for inside in _inner_loops(loop) for name in _names(inside, "loop")}
    if any(id(name) not in places | inner for name in _names(loop, "loop")):
        return False
    return all(_is_plain(node) for node in template.find_all(nodes.Node))


def _sides(node: nodes.Node) -> tuple[nodes.Node, nodes.Node]:
    assert isinstance(node, nodes.Assign)
    return node.target, node.node


def _names(node: nodes.Node, name: str) -> Iterator[nodes.Name]:
    return (each for each in node.find_all(nodes.Name) if each.name == name)


def _inner_loops(loop: nodes.For) -> Iterator[nodes.Node]:
    """Bodies of loops within: `loop` is theirs there."""
    for inside in loop.find_all(nodes.For):
        yield from inside.body


def _first_round_only(loop: nodes.For) -> Iterator[int]:
    """Uses of `loop` that tell the first round from the others and nothing more."""
    for node in loop.find_all((nodes.Getattr, nodes.Compare)):
        if isinstance(node, nodes.Getattr):
            if node.attr == "first" and isinstance(node.node, nodes.Name):
                yield id(node.node)
        elif isinstance(node, nodes.Compare) and len(node.ops) == 1:
            left, right = node.expr, node.ops[0].expr
            if (
                isinstance(left, nodes.Getattr)
                and isinstance(left.node, nodes.Name)
                and left.attr in _FIRST
                and isinstance(right, nodes.Const)
                and type(right.value) is int
                and right.value == _FIRST[left.attr]
                and node.ops[0].op in ("eq", "ne", "gt")
            ):
                yield id(left.node)


def _is_plain(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Filter):
        return node.name in _FILTERS
    if isinstance(node, nodes.Test):
        return node.name in _TESTS
    if isinstance(node, nodes.Assign):
        return isinstance(node.target, nodes.Name) and node.target.name != "loop"
    if isinstance(node, nodes.Call):
        return _is_plain_call(node)
    return isinstance(node, (*_NODES, nodes.Template))


def _is_plain_call(call: nodes.Call) -> bool:
    if call.dyn_args is not None or call.dyn_kwargs is not None:
        return False
    if isinstance(call.node, nodes.Name):
        return call.node.name in _FUNCTIONS
    return isinstance(call.node, nodes.Getattr) and call.node.attr in _METHODS
