"""`evalution conform`: the checks of an engine without a test file, and their report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from evalution_conformance import EngineConformance
from evalution_core import BaseEngine, ConfigurationError, Model, load_engine
from evalution_core.discovery import ENGINES
from evalution_enginekit.runtime import parse_option_pairs

_FILE = """\
from evalution_conformance.command import declare

TestEngine = declare({job!r})
"""
_PAGE = """\
<!doctype html>
<meta charset="utf-8">
<title>Conformance of {engine}</title>
<style>
body {{ font: 15px/1.5 sans-serif; max-width: 70em; margin: 2em auto; }}
td, th {{ text-align: left; padding: .1em 1em .1em 0; vertical-align: top; }}
.failed, .gap {{ color: #b00020; }}
</style>
<h1>Conformance of {engine}</h1>
<table>{setting}</table>
<h2>Checks</h2>
<table>{checks}</table>
"""


def conform(
    engine: Annotated[str, typer.Argument(help="The engine; `evalution engines` lists them.")],
    model: Annotated[str, typer.Option(help="builtin:tiny, a path, or a name.")],
    oracle: Annotated[
        str | None, typer.Option(help="An engine whose answers count as correct.")
    ] = None,
    oracle_model: Annotated[
        str | None, typer.Option(help="The model of the oracle [default: MODEL].")
    ] = None,
    pairs: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An option of the engine."),
    ] = None,
    output: Annotated[Path, typer.Option(help="The folder of the report.")] = Path("conformance"),
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Check an engine against the contract. Exit code 1: a check failed; 2: none could run."""
    if oracle_model is not None and oracle is None:
        raise ConfigurationError("--oracle-model needs --oracle, the engine that runs it")
    job: dict[str, Any] = {
        "engine": _qualify(engine),
        "options": parse_option_pairs("--set", pairs),
        "model": model,
        "oracle": None if oracle is None else _qualify(oracle),
        "oracle_model": oracle_model,
    }
    declare(job)  # wrong names and options are reported before a process is started
    output.mkdir(parents=True, exist_ok=True)
    file = output / "conformance.json"
    file.unlink(missing_ok=True)
    status = _run(job, file.resolve())
    if not file.is_file():
        raise ConfigurationError(f"the checks ended with status {status} and left no report")
    report = json.loads(file.read_text(encoding="utf-8"))
    if not report["engines"]:
        raise ConfigurationError(f"no check could begin: {report.get('uncollected')}")
    (output / "conformance.html").write_text(make_page(report), encoding="utf-8")
    print(f"report: {file}, {output / 'conformance.html'}")
    is_built = any(checked.get("is_built") for checked in report["engines"])
    if status or not is_built:
        raise typer.Exit(1 if status == 1 and is_built else 2)


def declare(job: dict[str, Any]) -> type[EngineConformance]:
    """Return the class of checks that a command line describes.

    Raises:
        ConfigurationError: an engine is unknown, or an option is wrong.
    """
    oracle, other = job["oracle"], job["oracle_model"]
    settings: dict[str, Any] = {
        "engine": load_engine(job["engine"]).from_options(job["options"]),
        "model": Model(path=job["model"]),
        "oracle": None if oracle is None else _make_oracle(oracle),
        "oracle_model": None if other is None else Model(path=other),
    }
    return type("TestEngine", (EngineConformance,), {"__module__": "test_conform", **settings})


def _qualify(name: str) -> str:
    """Return a name by which any process finds the engine that this one has of `name`."""
    entry = ENGINES.find(name)
    return entry.qualified if entry.distribution else name


def _make_oracle(name: str) -> BaseEngine:
    kind = load_engine(name)
    is_reference = kind.__module__.startswith("evalution_reference.")
    return kind.from_options({"dtype": "float64"} if is_reference else {})


def _run(job: dict[str, Any], report: Path) -> int:
    """Run the checks in a process of their own; pytest reads the kit's asserts as it imports it."""
    with TemporaryDirectory() as folder:
        test = Path(folder, "test_conform.py")
        test.write_text(_FILE.format(job=job), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-qq", "--tb=no", "-rN"]
        command += ["-p", "evalution_conformance.plugin", "-p", "no:cacheprovider"]
        command += [
            "--conformance-lines",
            "-c",
            os.devnull,
            f"--rootdir={folder}",
            f"--conformance-report={report}",
        ]
        variables = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
        return subprocess.run([*command, str(test)], env=variables, check=False).returncode


def make_page(report: dict[str, Any]) -> str:
    """Return the report as a page of HTML that needs no other file."""
    (checked,) = report["engines"]
    setting = {key: value for key, value in checked.items() if key != "checks"}
    shown = {**setting, "versions": report["versions"], "platform": report["platform"]}
    rows = "".join(
        f"<tr><th>{escape(key)}</th><td>{escape(json.dumps(value))}</td></tr>\n"
        for key, value in shown.items()
    )
    checks = "".join(
        f'<tr class="{escape(check["outcome"])}"><td>{escape(check["name"])}</td>'
        f"<td>{escape(check['outcome'])}</td><td>{escape(check['detail'] or '')}</td></tr>\n"
        for check in checked["checks"]
    )
    return _PAGE.format(engine=escape(str(checked.get("engine"))), setting=rows, checks=checks)
