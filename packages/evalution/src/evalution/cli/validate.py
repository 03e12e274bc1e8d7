"""`evalution validate`."""

from __future__ import annotations

from evalution.cli.errors import told_errors
from evalution.cli.options import DebugOption, SpecArgument
from evalution.preflight import check_capabilities, check_model
from evalution.spec import load_spec


def validate(spec: SpecArgument, debug: DebugOption = False) -> None:
    """Check a spec without loading the model: engine, options, tests, and every row."""
    with told_errors(debug=debug):
        loaded = load_spec(spec)
        check_model(loaded.model, loaded.engine)
        engine = type(loaded.engine)
        check_capabilities(loaded.tests, engine.capabilities, f"of engine {engine.__name__}")
        print(f"engine {engine.__name__}, model {loaded.model.name}")
        for suite in loaded.tests:
            print(f"test {suite.title}: {type(suite).__name__}, {suite.check_samples()} rows")
        print(f"{spec} is valid")
