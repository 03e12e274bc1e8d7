"""`evalution validate`."""

from __future__ import annotations

from evalution.cli.errors import told_errors
from evalution.cli.options import DebugOption, SpecArgument
from evalution.runs.preflight import check_capabilities, check_model
from evalution.spec.run_spec import Lane, Spec, load_spec


def validate(spec: SpecArgument, debug: DebugOption = False) -> None:
    """Check a spec without loading the model.

    Its engine, options and tests are checked, and each request is made once.
    """
    with told_errors(debug=debug):
        loaded = load_spec(spec)
        _check_lane("engine", Lane(loaded.engine, loaded.model), loaded)
        if loaded.against is not None:
            _check_lane("against", loaded.against, loaded)
        for suite in loaded.tests:
            print(f"test {suite.title}: {type(suite).__name__}, {suite.check_samples()} rows")
        print(f"{spec} is valid")


def _check_lane(section: str, lane: Lane, spec: Spec) -> None:
    engine = type(lane.engine)
    check_model(lane.model, lane.engine)
    check_capabilities(spec.tests, engine.capabilities, f"of engine {engine.__name__}")
    print(f"{section} {engine.__name__}, model {lane.model.name}")
