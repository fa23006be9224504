"""A model's chat template, rendered as Hugging Face and vLLM render it.

Jinja in an immutable sandbox with `trim_blocks`, `lstrip_blocks`, loop controls, the `generation` tag, a `tojson` that
escapes no HTML and keeps Unicode, `raise_exception` and `strftime_now` (transformers `chat_template_utils`; the
variables are those of vLLM 0.32's `build_chat_params`). Templates come from the operator's model folder and are
compiled once, and once more where each message renders by itself (`chat_apart`); a template inside a request is never
rendered, workers refuse it too unless told otherwise.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from router.adapters.chat_apart import says_verbatim, told_apart
from router.adapters.chat_messages import ContentFormat, Unrenderable, conversation, tool_schemas

TEMPLATE_BYTES_MAX = 512 * 1024
PROMPT_CHARS_MAX = 4 * 1024 * 1024
"""Rendered length above which a request is routed without a fingerprint: about a million tokens."""

CHAT_FIELDS = (
    "messages", "tools", "chat_template", "chat_template_kwargs", "add_generation_prompt", "continue_final_message",
    "documents", "reasoning_effort", "add_special_tokens", "truncate_prompt_tokens",
)  # fmt: skip
"""Fields of a chat request that decide its prompt: what `render` and the tokenizer read."""

_UNSET = (None, "auto")
"""Values the worker takes for absent among template arguments."""
_OWN_ARGUMENTS = frozenset((
    "chat_template", "tokenize", "tools", "conversation", "messages", "padding", "truncation", "max_length",
    "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs", "continue_final_message",
))  # fmt: skip
"""Template arguments that mean something else to the worker: such a request is not rendered here."""
_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
_MARK = secrets.token_hex(16)
"""Put out between messages where each is rendered by itself; no request can name it."""

_PROBE = secrets.token_hex(16)
"""Stands for any text, to see what a template puts around it."""
_PLAIN_ROLES = ("user", "assistant")

_Json = dict[str, Any]  # Any: decoded JSON of the client
_IN_FRONT: list[_Json] = [{"role": "user", "content": ""}]


class ChatTemplate:
    """One model's template(s). `templates`: name → source, `default` and optionally `tool_use`.

    `arguments` are the pool's own defaults (the worker's `--default-chat-template-kwargs`). Raises ValueError for a
    template that is missing, too long or does not compile.
    """

    def __init__(
        self,
        templates: Mapping[str, str],
        *,
        special_tokens: Mapping[str, str],
        now: Callable[[], datetime],
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        if "default" not in templates:
            raise ValueError("the model has no chat template")
        if any(len(source) > TEMPLATE_BYTES_MAX for source in templates.values()):
            raise ValueError(f"a chat template is longer than {TEMPLATE_BYTES_MAX} bytes")
        environment = _environment(now)
        self._sources = dict(templates)
        try:
            self._compiled = {name: environment.from_string(source) for name, source in templates.items()}
            self._formats = {name: _content_format(environment.parse(source)) for name, source in templates.items()}
            self._frames: dict[str, dict[str, list[str]]] = {
                name: {} for name, source in templates.items() if says_verbatim(environment.parse(source))
            }
            apart = {name: told_apart(environment.parse(source), _MARK) for name, source in templates.items()}
            self._apart = {name: environment.from_string(tree) for name, tree in apart.items() if tree is not None}
        except jinja2.TemplateError as error:
            line = getattr(error, "lineno", None)
            raise ValueError(f"a chat template does not compile: {type(error).__name__}, line {line}") from None
        self._special_tokens = dict(special_tokens)
        self._arguments = _set(arguments or {})

    @property
    def any_apart(self) -> bool:
        """Whether one of them renders each message by itself."""
        return bool(self._apart)

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(self._sources.values())

    def render(self, fields: Mapping[str, Any]) -> str:
        """The prompt of a chat request, from its decoded `CHAT_FIELDS`. Raises Unrenderable."""
        name, tools = self._choose(fields)
        source = self._sources[name]
        turns = conversation(
            fields.get("messages") or [],
            content_format=self._formats[name],
            knows_developer=self._knows_developer(name),
        )
        arguments = self._template_arguments(fields)
        arguments |= {"messages": turns, "tools": tools}
        if not fields.get("continue_final_message"):
            return "".join(self._run(self._compiled[name], arguments))
        if arguments["add_generation_prompt"] or "content" not in source:
            raise Unrenderable("the final message cannot be continued")
        return self._continued(name, arguments)

    def render_apart(self, fields: Mapping[str, Any]) -> list[str] | None:
        """What `render` gives in pieces: the front, each message, the end. None where messages depend on each other.
        Raises Unrenderable."""
        name, tools = self._choose(fields)
        messages = fields.get("messages") or []
        if not self._is_apart(name, fields, messages):
            return None
        turns = conversation(messages, content_format=self._formats[name], knows_developer=True)
        arguments = self._template_arguments(fields) | {"messages": turns, "tools": tools}
        return _pieces(self._run(self._apart[name], arguments))

    def render_further(self, fields: Mapping[str, Any], messages: list[_Json]) -> list[str] | None:
        """The pieces of `messages` behind others: each of them, the end. `fields`: all but the messages. None where
        they depend on those others. Raises Unrenderable, which may be for the want of them."""
        plain = self._plain_pieces(messages) if not fields else None
        return plain if plain is not None else self._further(fields, messages)

    def _further(self, fields: Mapping[str, Any], messages: list[_Json]) -> list[str] | None:
        name, tools = self._choose(fields)
        if not self._is_apart(name, fields, messages):
            return None
        content_format = self._formats[name]
        # Where the first message may be rendered otherwise, one stands in front, and its text is left out.
        front = _IN_FRONT if "loop" in self._sources[name] else []
        turns: list[_Json] = []
        if front or messages:
            turns = conversation([*front, *messages], content_format=content_format, knows_developer=True)
        arguments = self._template_arguments(fields) | {"messages": turns, "tools": tools}
        return _pieces(self._run(self._apart[name], arguments))[1 + len(front) :]

    def _plain_pieces(self, messages: list[_Json]) -> list[str] | None:
        """As `render_further`, of messages that are one text each, where the template puts that out as it is: what is
        around it is rendered once. None otherwise."""
        frames = self._frames.get("default")
        if frames is None or not all(_is_plain(message) for message in messages):
            return None
        if not frames:
            try:
                for role in _PLAIN_ROLES:
                    around, end = self._further({}, [{"role": role, "content": _PROBE}]) or ["", ""]
                    frames[role], frames[""] = around.split(_PROBE), [end]
            except Unrenderable:
                del self._frames["default"]
                return None
        return [*(message["content"].join(frames[message["role"]]) for message in messages), *frames[""]]

    def _choose(self, fields: Mapping[str, Any]) -> tuple[str, list[_Json] | None]:
        """(the template's name, the tools as it gets them)."""
        if fields.get("chat_template") is not None:
            raise Unrenderable("the request brings its own chat template")
        tools = tool_schemas(fields.get("tools"))
        return "tool_use" if tools is not None and "tool_use" in self._compiled else "default", tools

    def _knows_developer(self, name: str) -> bool:
        source = self._sources[name]
        return '"developer"' in source or "'developer'" in source

    def _is_apart(self, name: str, fields: Mapping[str, Any], messages: list[_Json]) -> bool:
        """Where a template knows no developer, its words join the system's, wherever they stand."""
        if name not in self._apart or fields.get("continue_final_message"):
            return False
        return self._knows_developer(name) or not any(message.get("role") == "developer" for message in messages)

    def _template_arguments(self, fields: Mapping[str, Any]) -> _Json:
        given = fields.get("chat_template_kwargs") or {}
        if not isinstance(given, dict) or _OWN_ARGUMENTS & given.keys():
            raise Unrenderable("template arguments that are the worker's own")
        effort = fields.get("reasoning_effort")
        own: _Json = {"documents": fields.get("documents"), "reasoning_effort": effort}
        own["add_generation_prompt"] = fields.get("add_generation_prompt", True)
        if effort is not None and "enable_thinking" not in given:
            own["enable_thinking"] = effort != "none"
        base = {**self._special_tokens, "documents": None, "add_generation_prompt": False}
        return {**base, **self._arguments, **_set(given), **_set(own)}

    def _run(self, template: jinja2.Template, arguments: _Json) -> list[str]:
        parts: list[str] = []
        length = 0
        try:
            for part in template.generate(arguments):
                if part != _MARK:
                    length += len(part)
                if length > PROMPT_CHARS_MAX:
                    raise Unrenderable("the prompt is too long")
                parts.append(part)
        except Unrenderable:
            raise
        except Exception as error:
            # A template runs arbitrary expressions over the client's values: whatever it raises, the worker raises too.
            raise Unrenderable(f"the template fails with {type(error).__name__}") from None
        return parts

    def _continued(self, name: str, arguments: _Json) -> str:
        """The prompt cut off behind the last message's text (transformers `continue_final_message`)."""
        last = dict(arguments["messages"][-1])
        text, last["content"] = _tagged(last["content"])
        turns = [*arguments["messages"][:-1], last]
        rendered = "".join(self._run(self._compiled[name], arguments | {"messages": turns}))
        tag = _CONTINUE_TAG.strip()
        if text.strip() not in rendered or tag not in rendered:
            raise Unrenderable("the final message cannot be continued")
        place = rendered.rindex(tag)
        if rendered[place : place + len(_CONTINUE_TAG)] == _CONTINUE_TAG:
            return rendered[:place]
        return rendered[:place].rstrip()


def _is_plain(message: _Json) -> bool:
    return len(message) == 2 and message.get("role") in _PLAIN_ROLES and type(message.get("content")) is str


def _pieces(parts: list[str]) -> list[str]:
    """What lies between the marks."""
    pieces, begin = [], 0
    for place, part in enumerate(parts):
        if part == _MARK:
            pieces.append("".join(parts[begin:place]))
            begin = place + 1
    pieces.append("".join(parts[begin:]))
    return pieces


def _set(arguments: Mapping[str, Any]) -> _Json:
    return {name: value for name, value in arguments.items() if value not in _UNSET}


def _tagged(content: str | list[_Json]) -> tuple[str, str | list[_Json]]:
    """(the text to continue, the content with the tag behind it)."""
    if isinstance(content, str):
        return content, content + _CONTINUE_TAG
    if not content:
        raise Unrenderable("the final message has no text to continue")
    last = content[-1]
    return last["text"], [*content[:-1], {**last, "text": last["text"] + _CONTINUE_TAG}]


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Any: whatever the template hands over."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's words for training; here it is only its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _content_format(template: nodes.Template) -> ContentFormat:
    """`openai` when the template itself loops over the parts of a message's content (vLLM's `auto`)."""
    try:
        return "openai" if _loops_over_content(template) else "string"
    except TypeError:
        return "string"


def _loops_over_content(template: nodes.Template) -> bool:
    messages = set(_message_names(template))
    inside_macros: set[int] = set()
    for macro in template.find_all(nodes.Macro):
        loops = list(macro.find_all(nodes.For))
        inside_macros.update(map(id, loops))
        bound = set(_content_parameters(template, macro, messages))
        if any(isinstance(loop.iter, nodes.Name) and loop.iter.name in bound for loop in loops):
            return True
    return any(
        _is_content(loop.iter, messages)
        or (isinstance(loop.iter, nodes.Name) and loop.iter.name == "content" and id(loop) not in inside_macros)
        for loop in template.find_all(nodes.For)
    )


def _message_names(template: nodes.Template) -> Iterator[str]:
    """Loop variables that stand for one message. Raises TypeError where a loop unpacks messages."""
    lists = {"messages"}
    grown = True
    while grown:
        aliases = {
            assignment.target.name
            for assignment in template.find_all(nodes.Assign)
            if isinstance(assignment.target, nodes.Name) and _reads(assignment.node, lists)
        }
        grown = not aliases <= lists
        lists |= aliases
    for loop in template.find_all(nodes.For):
        if _reads(loop.iter, lists):
            if not isinstance(loop.target, nodes.Name):
                raise TypeError("messages are unpacked")
            yield loop.target.name


def _content_parameters(template: nodes.Template, macro: nodes.Macro, messages: set[str]) -> Iterator[str]:
    """Parameters of a macro that some call gives a message's content."""
    names = [argument.name for argument in macro.args]
    for call in template.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name == macro.name:
            yield from (name for name, value in zip(names, call.args, strict=False) if _is_content(value, messages))
            yield from (word.key for word in call.kwargs if word.key in names and _is_content(word.value, messages))


def _is_content(node: nodes.Node, messages: set[str]) -> bool:
    node = _unwrapped(node)
    if isinstance(node, nodes.Getitem):
        named = isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    else:
        named = isinstance(node, nodes.Getattr) and node.attr == "content"
    return named and isinstance(node, nodes.Getitem | nodes.Getattr) and _is_name(node.node, messages)


def _reads(node: nodes.Node, names: set[str]) -> bool:
    return _is_name(_unwrapped(node), names)


def _is_name(node: nodes.Node, names: set[str]) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name in names


def _unwrapped(node: Any) -> Any:
    """The expression behind filters, tests and slices. Any: jinja2's nodes are loosely typed."""
    while True:
        inner = isinstance(node, nodes.Filter | nodes.Test) or (
            isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
        )
        if not inner or node.node is None:
            return node
        node = node.node
