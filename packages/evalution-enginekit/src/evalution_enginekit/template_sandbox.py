"""The environment of chat templates: Jinja's sandbox with limits on time and text.

Templates come with checkpoints, so they are foreign code. Jinja's sandbox keeps them from Python,
but lets them run on and fill the memory. Here each turn of a loop, operation, filter and call
counts against a budget of processor time and of text, and what can make a long text of short ones
in one step, or take long over it, is checked before. Jinja is an extra: this module is imported
when one is rendered.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Set, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from types import BuiltinMethodType, GeneratorType, MethodType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import jinja2
from jinja2 import filters, nodes, pass_context, pass_eval_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Joiner, Namespace
from jinja2.visitor import NodeTransformer

if TYPE_CHECKING:
    from jinja2.parser import Parser

TIME_LIMIT_S = 2.0
"""Processor time of one rendering, and 0.01 s more for each message up to 10 s."""
LONGEST_TEXT = 16 << 20
"""Characters of a text that one step may make; in a list, each member counts as 16 more."""
MOST_TEXT = 256 << 20
"""Characters that all steps of one rendering may make."""
WIDEST_FIELD = 1000
"""Characters that a number may ask for, as a width or indent, and digits of a precision."""
MOST_BITS = 1 << 16
"""Bits of a number."""

T = TypeVar("T")
_TOO_WIDE = f"a width, indent or precision is above {WIDEST_FIELD}"
_FIELDS = {
    "%": re.compile(r"%(?:\([^()]*+\))?+[-#0 +]*+([0-9*]*+)\.?([0-9*]*+)[hlL]?[a-zA-Z%]"),
    "{": re.compile(r"\{[^{}:]*:[^{}]*?(\d{4,})"),
}
_NESTED_FIELD = re.compile(r"\{[^{}]*\{")
_WIDE_METHODS = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
_WIDE_FILTERS = frozenset({"batch", "center", "indent", "round", "slice"})
_SLOW_METHODS = ("lstrip", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "strip")
"""Those that may compare each character with each of what they look for."""
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_TAKING_APART = (
    "batch", "groupby", "list", "map", "max", "min", "reject", "rejectattr", "select",
    "selectattr", "slice", "sort", "sum", "title", "unique", "wordcount",
)  # fmt: skip
"""Filters that make a value of each character or word of a text."""
_REFUSED = frozenset({"encode", "fromkeys", "maketrans", "striptags", "to_bytes", "translate"})
"""Methods that make tables and bytes, and one of web pages: no prompt needs them."""
_REFUSED_FILTERS = {"pprint", "striptags", "urlencode", "urlize", "wordwrap", "xmlattr"}
"""Filters for web pages, mostly, that take long or make much."""
_HOLDERS = (Joiner, LoopContext, Namespace)
"""Objects that hold values of any length, by the names of their attributes; printed in short."""


@dataclass(slots=True)
class _Budget:
    limit: float
    deadline: float
    characters: int = 0
    steps: int = 0

    def count(self, made: T) -> T:
        """Count a step, and return what it made."""
        size = 0
        value: object = made
        if isinstance(value, str):
            size = len(value)
        elif isinstance(value, list | tuple | dict | set):
            size = measure_value(cast(object, value))
        elif isinstance(value, int):
            _check_bits(value.bit_length())
        elif isinstance(value, GeneratorType):
            return cast(T, (self.count(each) for each in cast("Generator[object]", value)))
        return self.count_characters(made, size)

    def count_copy(self, made: T) -> T:
        """Count a text, or a list whose members are those of others."""
        value: object = made
        size = len(cast("list[object]", value)) if isinstance(value, list | tuple) else None
        return self.count(made) if size is None else self.count_characters(made, 16 * size)

    def count_characters(self, made: T, size: int) -> T:
        """Count a step that made `size` characters, and return what it made."""
        self.steps += 1
        if size:
            check_size(size)
            self.characters += size
            if self.characters > MOST_TEXT:
                raise SecurityError(f"it makes more than {MOST_TEXT} characters on its way")
        # To read the clock takes as long as most steps.
        if (size > 4096 or not self.steps % 16) and time.thread_time() > self.deadline:
            raise SecurityError(f"it takes more than {self.limit:g} s of processor time")
        return made


_BUDGET: ContextVar[_Budget] = ContextVar("template_budget")


@contextmanager
def limit_rendering(messages: int = 0) -> Generator[None]:
    """Give what is compiled and rendered within it a budget; over it, `SecurityError` is raised."""
    limit = TIME_LIMIT_S + min(0.01 * messages, 8.0)
    before = _BUDGET.set(_Budget(limit, time.thread_time() + limit))
    try:
        yield
    finally:
        _BUDGET.reset(before)


def measure_value(value: object, holder: int = 0) -> int:
    """Return a value's characters, 16 for each member, `holder` more for each of `_HOLDERS`."""
    size = 0
    waiting = [value]
    while waiting and size <= LONGEST_TEXT:
        found = waiting.pop()
        size += 16
        if isinstance(found, str):
            size += len(found)
        elif isinstance(found, int):
            size += found.bit_length() // 3
        elif isinstance(found, dict | Mapping):
            for pair in cast("Mapping[object, object]", found).items():
                waiting += pair
        elif isinstance(found, list | tuple | Set | ValuesView):  # keys and items are sets
            waiting += cast("Iterable[object]", found)
        elif isinstance(found, _HOLDERS):
            size += holder
    return size


def check_size(size: int) -> None:
    """Raise `SecurityError` for a text or list that is too long to be made."""
    if size > LONGEST_TEXT:
        raise SecurityError(f"it makes a text or list of more than {LONGEST_TEXT} characters")


def _check_bits(bits: float) -> None:
    if bits > MOST_BITS:
        raise SecurityError(f"a number has more than {MOST_BITS} bits")


def _check_parts(text: T, parts: int | None = None) -> T:
    """Check a text that is taken apart, by default into its characters, and return it."""
    if isinstance(text, str):
        check_size(len(text) + 16 * (len(text) if parts is None else parts))
    return text


def _check_widths(values: Iterable[object]) -> None:
    if any(isinstance(value, int) and abs(value) > WIDEST_FIELD for value in values):
        raise SecurityError(_TOO_WIDE)


def _check_format(sign: str, text: str, values: Iterable[object]) -> None:
    """Check a format by `%`, or by `{`, whose fields begin with the sign."""
    members, text = list(values), text if sign == "%" else text.replace("{{", "")
    widest = measure_value(members, LONGEST_TEXT if sign == "{" else 0) + WIDEST_FIELD
    check_size(len(text) + text.count(sign) * widest)
    sizes = {size for field in _FIELDS[sign].finditer(text) for size in field.groups()}
    if any(len(size) > 3 for size in sizes):
        raise SecurityError(_TOO_WIDE)
    _check_widths(members if "*" in sizes else ())
    if sign == "{" and _NESTED_FIELD.search(text):
        raise SecurityError("a format has a field within a field")
    if sign == "%" and "%" in _FIELDS[sign].sub("", text):
        raise SecurityError("a format has a % without a type, or parentheses within a name")


def _check_replacement(text: object, old: object, new: object, *_: object, **__: object) -> None:
    check_size(len(str(text)) + str(text).count(str(old)) * len(str(new)))


def _check_indent(text: object, width: int | str = 4, *_: object, **__: object) -> None:
    lines = sum(map(str(text).count, _LINE_ENDS)) + 1
    check_size(len(str(text)) + lines * (16 + (len(width) if isinstance(width, str) else width)))


def _check_sum(members: object, attribute: object = None, start: object = 0) -> None:
    if not isinstance(start, int | float):  # lists would be copied for each member
        raise SecurityError("sum starts with something else than a number")


def _check_default(_: Any, attribute: Any, default: Any = "", *__: Any, **___: Any) -> None:
    if len(str(default)) > WIDEST_FIELD:  # each member has a copy in lower case
        raise SecurityError(_TOO_WIDE)


def _check_join(parts: list[Any], separator: object) -> None:
    check_size(measure_value(parts) + len(parts) * len(str(separator)))


def _check_search(text: object, chars: object = None, *_: object, **__: object) -> None:
    # Looking for a hundred characters takes as long as making one.
    check_size(len(str(text)) * (len(str(chars)) // 100))


def _check_operation(operator: str, left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * right if operator == "**" else left.bit_length())
    elif operator == "*":
        text, times = (right, left) if isinstance(left, int) else (left, right)
        if isinstance(text, str | list | tuple) and isinstance(times, int):
            check_size(len(cast("str | list[Any]", text)) * times)
    elif operator == "%" and isinstance(left, str):
        members = cast("tuple[Any, ...]", right) if isinstance(right, tuple) else [right]
        _check_format("%", left, members)


def _check_method(method: object, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Check a method that can make a long text of short ones; return what it can be given."""
    if isinstance(method, LoopContext) and values:
        _check_parts(values[0])
    if not isinstance(method, BuiltinMethodType | MethodType):
        return values
    owner, name = cast(object, method.__self__), method.__name__
    if name in _REFUSED:
        raise SecurityError(f"{name}() is not for chat templates")
    if isinstance(owner, str) and name == "join" and values:
        values = (list(_check_parts(values[0])), *values[1:])  # a generator can be read once
        _check_join(values[0], owner)
    elif isinstance(owner, str):
        _check_text_method(owner, name, values)
    return values


def _check_text_method(owner: str, name: str, values: tuple[Any, ...]) -> None:
    if name in _WIDE_METHODS:
        _check_widths(values)
        check_size(owner.count("\t") * WIDEST_FIELD if name == "expandtabs" else 0)
    elif name == "replace":
        _check_replacement(owner, *values)
    elif name == "splitlines":
        _check_parts(owner, sum(map(owner.count, _LINE_ENDS)))
    elif name in {"split", "rsplit"}:
        separator = next((value for value in values if isinstance(value, str) and value), None)
        _check_parts(owner, owner.count(separator) if separator else len(owner) // 2)
    if name in _SLOW_METHODS:
        _check_search(owner, *(value for value in values if isinstance(value, str)))


class _Limits(NodeTransformer):
    """Adds the steps to a template for which Jinja has no hook: loops, `~`, lists and slices."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _apply_filter("check_parts", cast(nodes.Expr, node.iter), node.lineno)
        turn = _apply_filter("count_value", nodes.Const(None), node.lineno)
        node.body.insert(0, nodes.ExprStmt(turn).set_lineno(node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _apply_filter("join", nodes.List(node.nodes), node.lineno)

    def visit_List(self, node: nodes.List | nodes.Tuple | nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _apply_filter("count_value", node, node.lineno)

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self.visit_List(node) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        is_slice = isinstance(node.arg, nodes.Slice)
        return _apply_filter("count_slice", node, node.lineno) if is_slice else node

    def visit_Const(self, node: nodes.Const) -> nodes.Node:
        if isinstance(node.value, int):
            _check_bits(node.value.bit_length())
        return node


def _apply_filter(name: str, value: nodes.Expr, line: int) -> nodes.Filter:
    return cast(nodes.Filter, nodes.Filter(value, name, [], [], None, None).set_lineno(line))


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training; it prints its body."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Namespace(Namespace):
    """Printed without its values, which may be namespaces that hold one another twice."""

    def __init__(self, given: Any = (), /, **named: Any) -> None:
        super().__init__(_make_dict(given, **named))

    def __repr__(self) -> str:
        return "<Namespace>"


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox as Transformers documents it ("Writing a chat template"), with limits.

    Compile and render within `limit_rendering`.
    """

    intercepted_binops = frozenset({"+", "-", "*", "**", "%", "//"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_print,
            extensions=[loopcontrols, _GenerationTag],
        )
        given = cast("dict[str, Callable[..., Any]]", self.filters)
        given = {**given, "join": _join, "tojson": _to_json}
        kept = given.keys() - _REFUSED_FILTERS
        self.filters = _STEPS | {name: _limit_filter(name, given[name]) for name in kept}
        names = cast("dict[str, Any]", self.globals)  # pyright: ignore[reportUnknownMemberType]
        del names["lipsum"], names["cycler"]
        names |= {"raise_exception": _refuse, "strftime_now": _format_now}
        names |= {"dict": _make_dict, "namespace": _Namespace}

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """Join what a template, macro or block prints."""
        kept: list[str] = []
        length = 0
        for part in parts:
            length += len(part)
            check_size(length)
            kept.append(part)
        return "".join(kept)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _Limits().visit(super()._parse(source, name, filename))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute an operation that may make a long text."""
        _check_operation(operator, left, right)
        return _BUDGET.get().count_copy(super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Call a method, macro or function."""
        for added in ("_block_vars", "_loop_vars"):  # by Jinja, in loops and blocks
            kwargs.pop(added, None)
        if isinstance(obj, Macro):  # it puts values that it has no names for in lists of its own
            named = kwargs.keys() - obj.arguments[len(args) :]
            _BUDGET.get().count([*args[len(obj.arguments) :], *map(kwargs.get, named)])
        given = _check_method(obj, (*args, *kwargs.values()))[: len(args)]
        return _BUDGET.get().count(super().call(context, obj, *given, **kwargs))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Take a member; filters do it many times in a step, by an `attribute` of many names."""
        found = super().getitem(obj, argument)
        size = measure_value(found) if isinstance(obj, _HOLDERS) else 0
        return _BUDGET.get().count_characters(found, size)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return a method that formats a text, with its check; None for another method."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        text = str(value.__self__)

        def check_and_format(*args: Any, **kwargs: Any) -> str:
            _check_format("{", text, (*args, *kwargs.values()))
            return wrapped(*args, **kwargs)

        return check_and_format


def find_undeclared(source: str) -> set[str]:
    """Return the names of the variables that a template reads and doesn't set."""
    return find_undeclared_variables(TemplateEnvironment().parse(source))


def _limit_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def check_and_apply(*arguments: Any, **named: Any) -> Any:
        # Jinja gives some of its filters what they are used in.
        is_passed = isinstance(arguments[0], Context | nodes.EvalContext | jinja2.Environment)
        _check_filter(name, list(arguments[is_passed:]), named)
        return _BUDGET.get().count(function(*arguments, **named))

    return check_and_apply


_FILTER_CHECKS: Mapping[str, Callable[..., None]] = {
    "groupby": _check_default,
    "indent": _check_indent,
    "replace": _check_replacement,
    "sum": _check_sum,
    "trim": _check_search,
}
"""Checks with the parameters of their filters, so that each value goes by its name."""


def _check_filter(name: str, values: list[Any], named: dict[str, Any]) -> None:
    options = [*values[1:], *named.values()]
    if name in _WIDE_FILTERS:
        _check_widths(options)
    if name in _TAKING_APART:
        _check_parts(values[0])
        for option in options:  # which may be the path of an attribute
            if isinstance(option, str):
                _check_parts(option, option.count(".") + option.count(","))
    if name == "format":
        _check_format("%", str(values[0]), options)
    elif (check := _FILTER_CHECKS.get(name)) is not None:
        check(*values, **named)


@pass_context
def _count_value(context: Context, value: Any) -> Any:
    """Count a list, or a turn of a loop; with the context, Jinja doesn't while it compiles."""
    return _BUDGET.get().count(value)


@pass_context
def _count_slice(context: Context, value: Any) -> Any:
    """Count the characters or members that a slice copies."""
    return _BUDGET.get().count_copy(value)


def _print(value: Any) -> str:
    """Return the text that an expression prints."""
    if isinstance(value, str):
        return value
    check_size(measure_value(value))
    return _BUDGET.get().count(str(value))


@pass_eval_context
def _join(context: nodes.EvalContext, value: Any, d: str = "", attribute: Any = None) -> str:
    """Join texts, or attributes of members, which must be known to be measured."""
    parts: list[Any] = list(_check_parts(value))
    if attribute is not None:
        _check_parts(attribute, str(attribute).count("."))
        take = filters.make_attrgetter(context.environment, attribute)
        parts = [take(part) for part in parts]
    _check_join(parts, d)
    return filters.sync_do_join(context, parts, d)


def _make_dict(given: Any = (), /, **named: Any) -> dict[Any, Any]:
    """Make a mapping in steps: keys may be chosen so that each is compared with all others."""
    pairs = cast("Any", given.items() if isinstance(given, Mapping) else given)
    return {_BUDGET.get().count_characters(key, 0): value for key, value in pairs} | named


_STEPS = {"count_value": _count_value, "count_slice": _count_slice, "check_parts": _check_parts}


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON with the options of Transformers' filter, part by part."""
    width = len(indent) if isinstance(indent, str) else indent or 0
    if max(map(len, separators or ()), default=0) > WIDEST_FIELD or width > 16:  # in each line
        raise SecurityError(_TOO_WIDE)
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    count = _BUDGET.get().count_characters
    return TemplateEnvironment.concat(count(part, 0) for part in encoder.iterencode(value))


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _format_now(spelling: str) -> str:
    if len(spelling) > WIDEST_FIELD:
        raise SecurityError(f"the format of a date has more than {WIDEST_FIELD} characters")
    return datetime.now().strftime(spelling)
