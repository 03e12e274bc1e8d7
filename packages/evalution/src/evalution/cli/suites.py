"""`evalution suites`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from evalution.cli.completion import suite_names
from evalution.cli.errors import told_errors
from evalution.cli.option_table import options_table
from evalution.cli.options import DebugOption
from evalution.spec.declaration_schema import summary_of, written_doc
from evalution.spec.option_schema import filter_definitions, suite_options_schema
from evalution.suites.declaration import SuiteDeclaration
from evalution.suites.discovery import available_suites, load_suite
from evalution.suites.suite import Suite
from evalution.table import console

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
    with told_errors(debug=debug):
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
            yield _Listed(name, _asked_for(kind), summary_of(written_doc(kind)), value)
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
            "measures": summary_of(written_doc(kind)),
            "options_schema": schema,
        }
        print(json.dumps(shown, indent=2, ensure_ascii=False))
        return
    print(summary_of(written_doc(kind)))
    console().print(options_table(kind.__name__, schema))
    print(f"asks for: {_asked_for(kind) or 'what its suites ask for'}")


def _asked_for(kind: type[SuiteDeclaration]) -> str | None:
    """The kind of request; a set's suites may each have another."""
    return kind.request_kind.value if issubclass(kind, Suite) else None
