"""`evalution engines` and `evalution suites`, tables of options, and names for the shell.

Names are completed from package metadata, so that no engine is imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, cast

import typer
from rich import box
from rich.table import Table

from evalution.cli.errors import report_errors
from evalution.cli.options import DebugOption
from evalution.hints import INSTALL_HINTS
from evalution.suites.discovery import available_suites, load_suite
from evalution.suites.suite import Suite, SuiteDeclaration
from evalution.table import console, engines_table
from evalution.user_input import LARGEST
from evalution.yaml_spec.option_schema import (
    engine_options_schema,
    filter_definitions,
    read_docstring,
    suite_options_schema,
    summarize_docstring,
)
from evalution_core import load_engine
from evalution_core.discovery import available


def complete_engines(incomplete: str) -> list[str]:
    """Return installed engines whose names begin like this, as written or in lower case."""
    return _complete(incomplete, [entry.name for entry in available()])


def complete_known_engines(incomplete: str) -> list[str]:
    """Return installed engines and those that could be installed."""
    return _complete(incomplete, [*(entry.name for entry in available()), *INSTALL_HINTS])


def complete_suites(incomplete: str) -> list[str]:
    """Return installed suites whose names begin like this."""
    return _complete(incomplete, available_suites())


def _complete(incomplete: str, names: Iterable[str]) -> list[str]:
    # A shell only offers what begins with the typed text: names in lower case are right as well.
    offered = {name if name.startswith(incomplete) else name.lower() for name in names}
    return sorted(name for name in offered if name.startswith(incomplete))


_NAMED = {
    "EngineSpec": "engine",
    "filter": "filter",
    "filters": "filter or list of filters",
}
_NULL = {"type": "null"}


def options_table(name: str, schema: Mapping[str, Any]) -> Table:
    """Return a table of the options with type, default and description, as a spec writes them.

    A default of null is shown as `not set`; a secret option shows no default.
    """
    needed: list[str] = schema.get("required", [])
    properties: dict[str, dict[str, Any]] = schema.get("properties", {})
    table = Table(title=f"options of {name}", box=box.SIMPLE_HEAD, title_justify="left")
    for column, ratio in (("option", None), ("type", 2), ("default", 1), ("description", 4)):
        table.add_column(column, overflow="fold", ratio=ratio)
    table.expand = True
    for option, shape in properties.items():
        default = "(needed)" if option in needed else _default_text(shape.get("default"))
        kind = type_text(shape if option in needed else _without_null(shape))
        shown = "(secret)" if shape.get("writeOnly") else default
        table.add_row(option, kind, shown, str(shape.get("description", "")))
    return table


def type_text(shape: Mapping[str, Any]) -> str:
    """Return a JSON schema's type in a few words: `integer ≥ 1 or null`, `'left' | 'error'`."""
    if "enum" in shape:
        return " | ".join(value_text(value) for value in shape["enum"])
    if "const" in shape:
        return value_text(shape["const"])
    if "anyOf" in shape:
        return " or ".join(dict.fromkeys(type_text(part) for part in shape["anyOf"]))
    if "$ref" in shape:
        name = str(shape["$ref"]).rsplit("/", 1)[-1]
        return _NAMED.get(name, name)
    if shape.get("type") == "array":
        return f"list of {type_text(shape.get('items', {}))}"
    if shape.get("type") == "object" and isinstance(shape.get("additionalProperties"), Mapping):
        return f"mapping to {type_text(shape['additionalProperties'])}"
    return f"{shape.get('type', 'any')}{_bounds_text(shape)}"


def _bounds_text(shape: Mapping[str, Any]) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = [(sign, shape[key]) for key, sign in signs.items() if key in shape]
    # The largest count is no limit that anybody reaches.
    return "".join(f" {sign} {bound}" for sign, bound in bounds if bound != LARGEST)


def value_text(value: object) -> str:
    """Return a value as YAML writes it, texts in quotes: `null`, `false`, `[1, 'a']`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(value_text(part) for part in cast(list[object], value))}]"
    if isinstance(value, dict):
        pairs = cast(dict[str, object], value).items()
        return f"{{{', '.join(f'{name}: {value_text(part)}' for name, part in pairs)}}}"
    return repr(value)


def _default_text(default: object) -> str:
    return "not set" if default is None else value_text(default)


def _without_null(shape: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the shape without null where that is the default: nobody has to write it."""
    if shape.get("default") is not None or "anyOf" not in shape:
        return shape
    return {"anyOf": [part for part in shape["anyOf"] if part != _NULL]}


def engines(
    name: Annotated[
        str | None,
        typer.Argument(help="Show this engine's options.", autocompletion=complete_engines),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with the schema.")] = False,
    debug: DebugOption = False,
) -> None:
    """List the installed engines, or show one with its options. Listing imports none of them."""
    with report_errors(debug=debug):
        if name is None:
            _list_engines(as_json=as_json)
        else:
            _show_engine(name, as_json=as_json)


def _list_engines(*, as_json: bool) -> None:
    entries = available()
    if as_json:
        fields = ("name", "distribution", "version", "value")
        print(json.dumps([{f: getattr(entry, f) for f in fields} for entry in entries], indent=2))
    elif entries:
        console().print(engines_table(entries))
    else:
        print("no engine is installed; the smallest one comes with pip install evalution-reference")


def _show_engine(name: str, *, as_json: bool) -> None:
    engine = load_engine(name, hints=INSTALL_HINTS)
    capabilities = sorted(engine.capabilities)
    if as_json:
        shown = {
            "name": engine.__name__,
            "capabilities": capabilities,
            "options_schema": engine_options_schema(engine),
        }
        print(json.dumps(shown, indent=2))
        return
    if summary := summarize_docstring(read_docstring(engine)):
        print(summary)
    console().print(options_table(engine.__name__, engine_options_schema(engine)))
    print(f"can: {', '.join(capabilities)}")


_OURS = "evalution."


@dataclass(frozen=True, slots=True)
class _SuiteLine:
    """A line of the list; a suite of another package is known by its place alone."""

    name: str
    requests: str | None
    measures: str | None
    value: str


def suites(
    name: Annotated[
        str | None,
        typer.Argument(help="Show this suite's options.", autocompletion=complete_suites),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with the schema.")] = False,
    debug: DebugOption = False,
) -> None:
    """List the installed suites, or show one with its options."""
    with report_errors(debug=debug):
        if name is None:
            _list_suites(as_json=as_json)
        else:
            _show_suite(name, as_json=as_json)


def _list_suites(*, as_json: bool) -> None:
    listed = list(_describe_suites())
    if as_json:
        print(json.dumps([asdict(suite) for suite in listed], indent=2, ensure_ascii=False))
        return
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("suite", "what it measures", "asks for"):
        table.add_column(column, overflow="fold")
    for suite in listed:
        table.add_row(suite.name, suite.measures or suite.value, suite.requests or "")
    console().print(table)


def _describe_suites() -> Iterator[_SuiteLine]:
    for name, value in available_suites().items():
        if value.startswith(_OURS):
            kind = load_suite(name)
            yield _SuiteLine(
                name, _request_kind(kind), summarize_docstring(read_docstring(kind)), value
            )
        else:
            # The module of another package may import anything, and may be broken.
            yield _SuiteLine(name, None, None, value)


def _show_suite(name: str, *, as_json: bool) -> None:
    kind = load_suite(name)
    schema = suite_options_schema(kind)
    if as_json:
        schema["$defs"] = {**schema.get("$defs", {}), **filter_definitions()}
        shown = {
            "name": kind.__name__,
            "requests": _request_kind(kind),
            "measures": summarize_docstring(read_docstring(kind)),
            "options_schema": schema,
        }
        print(json.dumps(shown, indent=2, ensure_ascii=False))
        return
    print(summarize_docstring(read_docstring(kind)))
    console().print(options_table(kind.__name__, schema))
    print(f"asks for: {_request_kind(kind) or 'what its suites ask for'}")


def _request_kind(kind: type[SuiteDeclaration]) -> str | None:
    """Return the kind of request; None for a set, whose suites may each have another."""
    return kind.request_kind.value if issubclass(kind, Suite) else None
