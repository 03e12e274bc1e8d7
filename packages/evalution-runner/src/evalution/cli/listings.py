"""`evalution engines` and `evalution suites`, tables of options, and names for the shell.

Names are completed from package metadata, so that no engine is imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import date
from importlib.resources import files
from typing import Annotated, Any, cast

import typer
from rich import box
from rich.table import Table

from evalution.cli.errors import report_errors
from evalution.cli.options import DebugOption
from evalution.hints import ENGINE_HINTS
from evalution.suites.dataset import Dataset, DatasetRows
from evalution.suites.discovery import available_suites, load_suite
from evalution.suites.suite import Suite, SuiteDeclaration
from evalution.table import make_console
from evalution.user_input import LARGEST
from evalution.yaml_spec.option_schema import (
    PYTHON_SCHEMA,
    make_engine_schema,
    make_step_definitions,
    make_suite_schema,
    read_docstring,
    summarize_docstring,
)
from evalution_core import ConfigurationError, load_engine
from evalution_core.discovery import ENGINES
from evalution_core.options import option_fields


def complete_engines(incomplete: str) -> list[str]:
    """Return installed engines whose names begin like this, as written or in lower case."""
    return _complete(incomplete, ENGINES.names())


def complete_known_engines(incomplete: str) -> list[str]:
    """Return installed engines and those that could be installed."""
    return _complete(incomplete, [*ENGINES.names(), *ENGINE_HINTS])


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
    "metrics": "metric or list of metrics",
}
_NULL = {"type": "null"}
_OURS = "evalution."


def make_options_table(name: str, schema: Mapping[str, Any]) -> Table:
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
        default = "(needed)" if option in needed else _format_default(shape.get("default"))
        kind = format_type(shape if option in needed else _drop_null(shape))
        shown = "(secret)" if shape.get("writeOnly") else default
        table.add_row(option, kind, shown, str(shape.get("description", "")))
    return table


def format_type(shape: Mapping[str, Any]) -> str:
    """Return a JSON schema's type in a few words: `integer ≥ 1 or null`, `'left' | 'error'`."""
    if "enum" in shape:
        return " | ".join(format_option(value) for value in shape["enum"])
    if "const" in shape:
        return format_option(shape["const"])
    if "anyOf" in shape:
        return " or ".join(dict.fromkeys(format_type(part) for part in shape["anyOf"]))
    if "$ref" in shape:
        name = str(shape["$ref"]).rsplit("/", 1)[-1]
        return _NAMED.get(name, name)
    if shape.get("type") == "array":
        return f"list of {format_type(shape.get('items', {}))}"
    if shape.get("type") == "object" and isinstance(shape.get("additionalProperties"), Mapping):
        return f"mapping to {format_type(shape['additionalProperties'])}"
    return f"{shape.get('type', 'any')}{_format_bounds(shape)}"


def _format_bounds(shape: Mapping[str, Any]) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = [(sign, shape[key]) for key, sign in signs.items() if key in shape]
    # The largest count is no limit that anybody reaches.
    return "".join(f" {sign} {bound}" for sign, bound in bounds if bound != LARGEST)


def format_option(value: object) -> str:
    """Return a value as YAML writes it, texts in quotes: `null`, `false`, `[1, 'a']`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(format_option(part) for part in cast(list[object], value))}]"
    if isinstance(value, dict):
        pairs = cast(dict[str, object], value).items()
        return f"{{{', '.join(f'{name}: {format_option(part)}' for name, part in pairs)}}}"
    return repr(value)


def _format_default(default: object) -> str:
    return "not set" if default is None else format_option(default)


def _drop_null(shape: Mapping[str, Any]) -> Mapping[str, Any]:
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
    available: Annotated[
        bool,
        typer.Option("--available", help="List all known engines, and what was proved on each."),
    ] = False,
    debug: DebugOption = False,
) -> None:
    """List the installed engines, or show one with its options. Listing imports none of them."""
    with report_errors(debug=debug):
        if available:
            if name is not None:
                raise ConfigurationError(f"--available lists all engines; leave it out for {name}")
            _list_available(as_json=as_json)
            return
        if name is None:
            _list_engines(as_json=as_json)
            return
        engine = load_engine(name)
        capabilities = sorted(engine.capabilities)
        schema = make_engine_schema(engine)
        schema["properties"] = {**schema.get("properties", {}), "python": PYTHON_SCHEMA}
        if as_json:
            facts = {"name": engine.__name__, "capabilities": capabilities}
            _print_json({**facts, "options_schema": schema})
        else:
            _print_options(engine, schema, f"can: {', '.join(capabilities)}")


def _list_engines(*, as_json: bool) -> None:
    fields = ("name", "distribution", "version", "value")
    rows = [
        {field: getattr(entry, field) for field in fields} | {"name": name}
        for name, entry in ENGINES.names().items()
    ]
    if as_json:
        _print_json(rows)
    elif rows:
        table = _make_table("engine", "package", "version", "class")
        for row in rows:
            package = row["distribution"] or "(this process)"
            table.add_row(row["name"], package, row["version"] or "", row["value"])
        make_console().print(table)
    else:
        print("no engine is installed; the smallest one comes with pip install evalution-reference")


def _list_available(*, as_json: bool) -> None:
    """Print the registry, which is a file of this package: no network is used."""
    text = files("evalution.engines").joinpath("available.json").read_text(encoding="utf-8")
    entries: list[dict[str, Any]] = json.loads(text)
    if as_json:
        _print_json(entries)
        return
    today = str(date.today())
    table = _make_table("engine", "package", "rating", "checked on", "until")
    for entry in entries:
        report: dict[str, Any] = entry["report"] or {}
        until = str(report.get("expires", ""))
        shown = f"{until} (expired)" if until and until < today else until
        runtime = "no report" if not report else report["runtime"] or "a stand-in"
        table.add_row(
            entry["engine"], entry["distribution"], entry["rating"] or "–", runtime, shown
        )
    make_console().print(table)


def suites(
    suite: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Show this suite's options.", autocompletion=complete_suites
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with the schema.")] = False,
    debug: DebugOption = False,
) -> None:
    """List the installed suites, or show one with its options."""
    with report_errors(debug=debug):
        if suite is None:
            _list_suites(as_json=as_json)
            return
        kind = load_suite(suite)
        schema = make_suite_schema(kind)
        facts = {"name": kind.__name__, **_describe_suite(kind), "metrics": kind.describe_metrics()}
        if as_json:
            schema["$defs"] = {**schema.get("$defs", {}), **make_step_definitions()}
            _print_json({**facts, "options_schema": schema})
        else:
            asked = facts["requests"] or "what its suites ask for"
            _print_options(kind, schema, f"asks for: {asked}")
            if dataset := _find_dataset(kind):
                rows = "" if dataset.rows is None else f", {dataset.rows:,} rows"
                licence = f", licence {dataset.licence}" if dataset.licence else ""
                print(f"data set: {dataset.path} (split {dataset.split}{rows}{licence})")
            _print_metrics(kind)


def _list_suites(*, as_json: bool) -> None:
    rows: list[dict[str, Any]] = []
    for name, value in available_suites().items():
        # The module of another package may import anything, and may be broken.
        kind = load_suite(name) if value.startswith(_OURS) else None
        facts = _describe_suite(kind)
        rows.append({"name": name, **facts, "value": value})
    if as_json:
        _print_json(rows)
        return
    table = _make_table("suite", "what it measures", "asks for", "rows", "data set (licence)")
    table.columns[0].no_wrap, table.columns[3].justify = True, "right"
    for row in rows:
        count = "" if row["rows"] is None else f"{row['rows']:,}"
        licence = f" ({row['licence']})" if row["licence"] else ""
        source = f"{row['dataset'] or ''}{licence}"
        table.add_row(row["name"], row["measures"] or row["value"], row["requests"], count, source)
    make_console().print(table)


def _find_dataset(kind: type[SuiteDeclaration] | None) -> Dataset | None:
    """Return the data set of a suite that is known by name."""
    return kind.dataset if kind is not None and issubclass(kind, DatasetRows) else None


def _describe_suite(kind: type[SuiteDeclaration] | None) -> dict[str, Any]:
    """Return the kind of its requests, what it measures and its data set, where they are known.

    A set has suites of several kinds; a suite over a person's own rows has no data set.
    """
    dataset = _find_dataset(kind)
    facts = {
        "dataset": dataset and dataset.path,
        "rows": dataset and dataset.rows,
        "licence": dataset and dataset.licence,
    }
    if kind is None:
        return {"requests": None, "measures": None, **facts}
    measures = summarize_docstring(read_docstring(kind))
    requests = kind.request_kind.label if issubclass(kind, Suite) else None
    return {"requests": requests, "measures": measures, **facts}


def _make_table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print_options(kind: type[Any], schema: Mapping[str, Any], last_line: str) -> None:
    if summary := summarize_docstring(read_docstring(kind)):
        print(summary)
    make_console().print(make_options_table(kind.__name__, schema))
    print(last_line)


def _print_metrics(kind: type[SuiteDeclaration]) -> None:
    if not (metrics := kind.describe_metrics()):
        return
    options = {option.name: option for option in option_fields(kind)}
    how = "choose with the option metrics" if "metrics" in options else "all are reported"
    table = Table(title=f"metrics of {kind.__name__}: {how}", box=box.SIMPLE_HEAD)
    table.title_justify = "left"
    for column in ("metric", "meaning"):
        table.add_column(column, overflow="fold")
    for name, meaning in metrics.items():
        table.add_row(name, meaning)
    make_console().print(table)


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))
