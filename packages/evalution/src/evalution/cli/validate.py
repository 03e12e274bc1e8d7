"""`evalution validate`."""

from __future__ import annotations

from collections.abc import Sequence

from evalution.cli.errors import told_errors
from evalution.cli.options import DebugOption, SpecArgument
from evalution.runs.preflight import EngineAndModel, check_capabilities, check_model, expand_suites
from evalution.runs.run_identity import find_free_name
from evalution.spec.run_spec import load_spec
from evalution.suites.suite import AnySuite


def validate(spec: SpecArgument, debug: DebugOption = False) -> None:
    """Check a spec without loading the model.

    Its engine, options and tests are checked, and each request is made once.
    """
    with told_errors(debug=debug):
        loaded = load_spec(spec)
        suites = expand_suites(loaded.tests)
        _check_lane("engine", EngineAndModel(loaded.engine, loaded.model), suites)
        if loaded.against is not None:
            _check_lane("against", loaded.against, suites)
        names: list[str] = []
        for suite in suites:
            names.append(find_free_name(suite.title, names))
            print(f"test {names[-1]}: {type(suite).__name__}, {suite.check_samples()} rows")
        print(f"{spec} is valid")


def _check_lane(section: str, lane: EngineAndModel, suites: Sequence[AnySuite]) -> None:
    engine = type(lane.engine)
    check_model(lane.model, lane.engine)
    check_capabilities(suites, engine.capabilities, f"of engine {engine.__name__}")
    print(f"{section} {engine.__name__}, model {lane.model.name}")
