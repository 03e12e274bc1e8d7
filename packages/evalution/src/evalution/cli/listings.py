"""Names that the shell completes; read from package metadata, so that nothing is imported."""

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
from evalution.yaml_spec.option_schema import (
    engine_options_schema,
    filter_definitions,
    read_docstring,
    suite_options_schema,
    summarize_docstring,
)
from evalution_core import available, load_engine


def engine_names(incomplete: str) -> list[str]:
    """Installed engines whose names begin like this, as written or in small letters."""
    return _beginning(incomplete, [entry.name for entry in available()])


def known_engine_names(incomplete: str) -> list[str]:
    """Installed engines, and those that could be installed."""
    return _beginning(incomplete, [*(entry.name for entry in available()), *INSTALL_HINTS])


def suite_names(incomplete: str) -> list[str]:
    """Installed suites whose names begin like this."""
    return _beginning(incomplete, available_suites())


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    # What is offered has to begin with what was typed: a name in small letters is right as well.
    offered = {name if name.startswith(incomplete) else name.lower() for name in names}
    return sorted(name for name in offered if name.startswith(incomplete))


_NAMED = {
    "EngineSpec": "engine",
    "filter": "filter",
    "filters": "filter or list of filters",
}
_NULL = {"type": "null"}


def options_table(name: str, schema: Mapping[str, Any]) -> Table:
    """Each option with its type and default, as a spec writes them; a secret one shows none.

    An option whose default is null is `not set`, and what it takes besides is its type.
    """
    needed: list[str] = schema.get("required", [])
    properties: dict[str, dict[str, Any]] = schema.get("properties", {})
    table = Table(title=f"options of {name}", box=box.SIMPLE_HEAD, title_justify="left")
    for column in ("option", "type", "default"):
        table.add_column(column, overflow="fold")
    for option, shape in properties.items():
        default = "(needed)" if option in needed else _default_text(shape.get("default"))
        kind = type_text(shape if option in needed else _settable(shape))
        table.add_row(option, kind, "(secret)" if shape.get("writeOnly") else default)
    return table


def type_text(shape: Mapping[str, Any]) -> str:
    """A JSON schema's type in a few words: `integer or null`, `'left' | 'error'`."""
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
    return str(shape.get("type", "any"))


def value_text(value: object) -> str:
    """A value as YAML has it, with quotes around every text: `null`, `false`, `[1, 'a']`."""
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


def _settable(shape: Mapping[str, Any]) -> Mapping[str, Any]:
    """The shape without null where null is the default: nobody has to write it."""
    if shape.get("default") is not None or "anyOf" not in shape:
        return shape
    return {"anyOf": [part for part in shape["anyOf"] if part != _NULL]}


def engines(
    name: Annotated[
        str | None, typer.Argument(help="Show this engine's options.", autocompletion=engine_names)
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
class _Listed:
    """A line of the list; of a suite that another package brings only its place is known."""

    name: str
    requests: str | None
    measures: str | None
    value: str


def suites(
    name: Annotated[
        str | None, typer.Argument(help="Show this suite's options.", autocompletion=suite_names)
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
    listed = list(_listed())
    if as_json:
        print(json.dumps([asdict(suite) for suite in listed], indent=2, ensure_ascii=False))
        return
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("suite", "what it measures", "asks for"):
        table.add_column(column, overflow="fold")
    for suite in listed:
        table.add_row(suite.name, suite.measures or suite.value, suite.requests or "")
    console().print(table)


def _listed() -> Iterator[_Listed]:
    for name, value in available_suites().items():
        if value.startswith(_OURS):
            kind = load_suite(name)
            yield _Listed(name, _asked_for(kind), summarize_docstring(read_docstring(kind)), value)
        else:
            # A module of somebody else's may import anything, and may be broken.
            yield _Listed(name, None, None, value)


def _show_suite(name: str, *, as_json: bool) -> None:
    kind = load_suite(name)
    schema = suite_options_schema(kind)
    if as_json:
        schema["$defs"] = {**schema.get("$defs", {}), **filter_definitions()}
        shown = {
            "name": kind.__name__,
            "requests": _asked_for(kind),
            "measures": summarize_docstring(read_docstring(kind)),
            "options_schema": schema,
        }
        print(json.dumps(shown, indent=2, ensure_ascii=False))
        return
    print(summarize_docstring(read_docstring(kind)))
    console().print(options_table(kind.__name__, schema))
    print(f"asks for: {_asked_for(kind) or 'what its suites ask for'}")


def _asked_for(kind: type[SuiteDeclaration]) -> str | None:
    """The kind of request; a set's suites may each have another."""
    return kind.request_kind.value if issubclass(kind, Suite) else None
