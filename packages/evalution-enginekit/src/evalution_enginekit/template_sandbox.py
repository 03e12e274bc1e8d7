"""The environment of chat templates: Jinja's sandbox with limits on time and text.

Templates come with checkpoints, so they are foreign code. Jinja's sandbox keeps them from Python,
but lets them run on and fill the memory. Here each turn of a loop, operation, filter and call
counts against a budget of processor time and of text, and what can make a long text of short ones
in one step is checked before. Jinja is an extra: this module is imported when one is rendered.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from types import BuiltinMethodType, MethodType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import jinja2
from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

if TYPE_CHECKING:
    from jinja2.parser import Parser

TIME_LIMIT_S = 2.0
"""Processor time of one rendering."""
LONGEST_TEXT = 16 << 20
"""Characters of a text that one step may make; in a list, each member counts as 16 more."""
MOST_TEXT = 256 << 20
"""Characters that all steps of one rendering may make."""
WIDEST_FIELD = 1000
"""Characters that a number may ask for, as a width or indent, and digits of a precision."""
MOST_BITS = 1 << 16
"""Bits of a number."""

T = TypeVar("T")
_LONG = 1 << 12
_TOO_WIDE = f"a width, indent or precision is above {WIDEST_FIELD}"
_WIDE_FIELD = re.compile(r"%[^a-zA-Z%]*\d{4}|\{[^{}]*:[^{}]*\d{4}")
_WIDTH_BY_VALUE = re.compile(r"%[^a-zA-Z%]*\*|\{[^{}]*\{")
_WIDE_METHODS = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
_WIDE_FILTERS = frozenset({"batch", "center", "indent", "round", "slice", "tojson"})
_REFUSED = frozenset({"encode", "fromkeys", "maketrans", "to_bytes", "translate"})
"""Methods that make tables and bytes, which no prompt needs."""


@dataclass(slots=True)
class _Budget:
    deadline: float
    characters: int = 0
    steps: int = 0

    def count(self, made: T) -> T:
        """Count a step, and return what it made."""
        size = 0
        if isinstance(made, str):
            size = len(made)
        elif isinstance(made, list | tuple | dict):
            size = measure_value(cast(object, made))
        self.steps += 1
        if size:
            check_size(size)
            self.characters += size
            if self.characters > MOST_TEXT:
                raise SecurityError(f"it makes more than {MOST_TEXT} characters on its way")
        # To read the clock takes as long as most steps.
        if (size > _LONG or not self.steps % 16) and time.thread_time() > self.deadline:
            raise SecurityError(f"it takes more than {TIME_LIMIT_S:g} s of processor time")
        return made  # pyright: ignore[reportUnknownVariableType]


_BUDGET: ContextVar[_Budget] = ContextVar("template_budget")


@contextmanager
def limit_rendering() -> Generator[None]:
    """Give what is compiled and rendered within it a budget; over it, `SecurityError` is raised."""
    before = _BUDGET.set(_Budget(time.thread_time() + TIME_LIMIT_S))
    try:
        yield
    finally:
        _BUDGET.reset(before)


def measure_value(value: object) -> int:
    """Return the characters in a value, and 16 for each member; stops above `LONGEST_TEXT`."""
    size = 0
    waiting = [value]
    while waiting and size <= LONGEST_TEXT:
        found = waiting.pop()
        size += 16
        if isinstance(found, str):
            size += len(found)
        elif isinstance(found, list | tuple):
            waiting += cast("list[object]", found)
        elif isinstance(found, dict):
            for pair in cast("dict[object, object]", found).items():
                waiting += pair
    return size


def check_size(size: int) -> None:
    """Raise `SecurityError` for a text or list that is too long to be made."""
    if size > LONGEST_TEXT:
        raise SecurityError(f"it makes a text or list of more than {LONGEST_TEXT} characters")


def _check_widths(values: Iterable[object]) -> None:
    if any(isinstance(value, int) and abs(value) > WIDEST_FIELD for value in values):
        raise SecurityError(_TOO_WIDE)


def _check_format(text: str, values: Iterable[object]) -> None:
    members = list(values)
    if _WIDE_FIELD.search(text):
        raise SecurityError(_TOO_WIDE)
    if _WIDTH_BY_VALUE.search(text):
        _check_widths(members)
    check_size(len(text) + (text.count("%") + text.count("{")) * measure_value(members))


def _check_replacement(text: object, old: object = "", new: object = "", *_: object) -> None:
    check_size(len(str(text)) + str(text).count(str(old)) * len(str(new)))


def _check_join(parts: object, separator: object = "", *_: object) -> None:
    if isinstance(parts, str | list | tuple | dict):
        known = cast("list[Any]", parts)
        check_size(measure_value(known) + len(known) * len(str(separator)))


def _check_operation(operator: str, left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else left.bit_length()
        if bits > MOST_BITS:
            raise SecurityError(f"a number has more than {MOST_BITS} bits")
    elif operator == "*":
        text, times = (right, left) if isinstance(left, int) else (left, right)
        if isinstance(text, str | list | tuple) and isinstance(times, int):
            check_size(len(cast("str | list[Any]", text)) * times)
    elif operator == "%" and isinstance(left, str):
        _check_format(left, cast("tuple[Any, ...]", right) if isinstance(right, tuple) else [right])


def _check_method(method: object, values: tuple[Any, ...]) -> None:
    """Check the method of a text that can make a long one of short ones."""
    if not isinstance(method, BuiltinMethodType | MethodType):
        return
    owner, name = cast(object, method.__self__), method.__name__
    if name in _REFUSED:
        raise SecurityError(f"{name}() is not for chat templates")
    if not isinstance(owner, str):
        return
    if name in _WIDE_METHODS:
        _check_widths(values)
        check_size(owner.count("\t") * WIDEST_FIELD if name == "expandtabs" else 0)
    elif name == "replace":
        _check_replacement(owner, *values)
    elif name == "join" and values:
        _check_join(values[0], owner)


class _Limits(NodeTransformer):
    """Adds the steps to a template for which Jinja has no hook: loops, `~`, lists and mappings."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        turn = _apply_filter("count_turn", nodes.Const(None), node.lineno)
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


def _apply_filter(name: str, value: nodes.Expr, line: int) -> nodes.Filter:
    return cast(nodes.Filter, nodes.Filter(value, name, [], [], None, None).set_lineno(line))


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training; it prints its body."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox as Transformers documents it ("Writing a chat template"), with limits.

    Compile and render within `limit_rendering`.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
        )
        given = cast("dict[str, Callable[..., Any]]", self.filters)
        given = {**given, "tojson": _to_json, "count_value": _keep}
        del given["urlize"]
        limited = {name: _limit_filter(name, function) for name, function in given.items()}
        self.filters = {**limited, "count_turn": _count_turn}
        names = cast("dict[str, Any]", self.globals)  # pyright: ignore[reportUnknownMemberType]
        del names["lipsum"], names["cycler"]
        names |= {"raise_exception": _refuse, "strftime_now": _format_now}

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
        if operator == "+":  # the sum of two is as long as both
            return _BUDGET.get().count(left + right)
        _check_operation(operator, left, right)
        return _BUDGET.get().count(super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Call a method, macro or function."""
        _check_method(obj, (*args, *kwargs.values()))
        return _BUDGET.get().count(super().call(context, obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return a method that formats a text, with its check; None for another method."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        text = str(value.__self__)

        def check_and_format(*args: Any, **kwargs: Any) -> str:
            _check_format(text, (*args, *kwargs.values()))
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
        values = [*arguments[is_passed:], *named.values()]
        if name == "join" and not isinstance(values[0], str | list | tuple | dict):
            values[0] = list(values[0])  # a generator can be read once
            arguments = (*arguments[:is_passed], values[0], *arguments[is_passed + 1 :])
        _check_filter(name, values)
        return _BUDGET.get().count(function(*arguments, **named))

    return check_and_apply


def _check_filter(name: str, values: list[Any]) -> None:
    if name == "join":
        _check_join(*values)
    elif name == "replace":
        _check_replacement(*values)
    elif name == "format":
        _check_format(str(values[0]), values[1:])
    elif name in _WIDE_FILTERS:
        _check_widths(values[1:])
    if name == "indent":
        text, *widths = values
        widest = max((len(w) if isinstance(w, str) else int(w) for w in widths), default=4)
        check_size(str(text).count("\n") * widest)


def _keep(value: Any) -> Any:
    return value


@pass_context
def _count_turn(context: Context, value: None) -> None:
    """Count a turn of a loop; with the context, Jinja doesn't compute it while it compiles."""
    _BUDGET.get().count(None)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    if indent is not None and indent > 16:  # each level multiplies it
        raise SecurityError(_TOO_WIDE)
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _format_now(spelling: str) -> str:
    return datetime.now().astimezone().strftime(spelling)
