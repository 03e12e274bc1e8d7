"""`evalution validate` and `evalution schema`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from evalution.cli.errors import report_errors
from evalution.cli.options import DebugOption, OutputFileOption, SpecArgument, write_schema
from evalution.redaction import mask_text
from evalution.runs.judging import check_judges
from evalution.runs.preflight import (
    EngineAndModel,
    check_capabilities,
    check_model,
    parse_tests,
)
from evalution.runs.run_identity import find_free_name
from evalution.yaml_spec.run_spec import load_spec
from evalution.yaml_spec.schema import make_spec_schema

if TYPE_CHECKING:
    from evalution.suites.suite import AnySuite


def validate(spec: SpecArgument, debug: DebugOption = False) -> None:
    """Check a spec without loading the model.

    Its engine, options and tests are checked, and each request is made once.
    """
    with report_errors(debug=debug):
        loaded = load_spec(spec)
        suites = parse_tests(loaded.tests)
        _check_subject("engine", EngineAndModel(loaded.engine, loaded.model), suites)
        check_judges(suites)
        if loaded.against is not None:
            _check_subject("against", loaded.against, suites)
        names: list[str] = []
        for suite in suites:
            names.append(find_free_name(suite.title, names))
            count = suite.check_samples()
            rows = "1 row" if count == 1 else f"{count} rows"
            print(f"test {names[-1]}: {type(suite).__name__}, {rows}")
            for notice in suite.list_notices({}, 0):
                typer.echo(mask_text(f"{names[-1]}: {notice}"), err=True)
        print(f"{spec} is valid")


def _check_subject(section: str, subject: EngineAndModel, suites: Sequence[AnySuite]) -> None:
    engine = type(subject.engine)
    check_model(subject.model, subject.engine)
    check_capabilities(suites, engine.capabilities, f"of engine {engine.__name__}")
    print(f"{section} {engine.__name__}, model {subject.model.name}")


def schema(output: OutputFileOption = None, debug: DebugOption = False) -> None:
    """Write the JSON Schema of a spec, for an editor.

    It knows all installed engines and suites. An editor with the YAML language server checks and
    completes a spec by it if the spec begins with `# yaml-language-server: $schema=FILE`.
    """

    def make() -> str:
        found = make_spec_schema()
        for complaint in found.complaints:
            typer.echo(f"left out: {mask_text(complaint)}", err=True)
        return json.dumps(found.schema, indent=2, ensure_ascii=False) + "\n"

    with report_errors(debug=debug):
        write_schema(make, output)
