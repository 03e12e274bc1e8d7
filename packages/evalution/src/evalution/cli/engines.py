"""`evalution engines`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from evalution.cli.completion import engine_names
from evalution.cli.errors import told_errors
from evalution.cli.option_table import options_table
from evalution.cli.options import DebugOption
from evalution.hints import INSTALL_HINTS
from evalution.spec.declaration_schema import summary_of, written_doc
from evalution.spec.option_schema import engine_options_schema
from evalution.table import console, engines_table
from evalution_core import available, load_engine


def engines(
    name: Annotated[
        str | None, typer.Argument(help="Show this engine's options.", autocompletion=engine_names)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with the schema.")] = False,
    debug: DebugOption = False,
) -> None:
    """List the installed engines, or show one with its options. Listing imports none of them."""
    with told_errors(debug=debug):
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
    if summary := summary_of(written_doc(engine)):
        print(summary)
    console().print(options_table(engine.__name__, engine_options_schema(engine)))
    print(f"can: {', '.join(capabilities)}")
