"""Declares an engine for a program of another environment: `python -m` this, with the question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from evalution.doctor.child import Facts, answer_parent
from evalution.environment import find_origin
from evalution.error_boundary import wrap_errors
from evalution.redaction import mask_text
from evalution.workers.session import find_lost_capabilities
from evalution.yaml_spec.option_schema import read_docstring
from evalution.yaml_spec.run_spec import parse_engine
from evalution_core import BaseEngine, ConfigurationError, EvalutionError
from evalution_core.options import numeric_options, option_fields
from evalution_core.redaction import SECRET_FIELD


def answer_question(question: Mapping[str, Any]) -> Iterator[Facts]:
    """Declare the engine of the question, or say by which error it is refused."""
    yield {"stage": "its import"}
    try:
        engine = parse_engine({"kind": question["name"], "params": question["options"]})
        with wrap_errors("its declaration", ConfigurationError):
            yield declare(engine)
            if question["default_model"]:
                yield {"default_model": engine.default_model()}
    except EvalutionError as error:
        yield {"refusal": (type(error).__name__, mask_text(str(error)))}
    yield {"stage": None}


def declare(engine: BaseEngine) -> Facts:
    """Return what is known of an engine without a model, as JSON; options redacted."""
    kind = type(engine)
    numeric, values = numeric_options(engine), engine.to_dict()
    options = {
        option.name: (
            values[option.name],
            "secret"
            if option.metadata.get(SECRET_FIELD)
            else "number"
            if option.name in numeric
            else "speed",
        )
        for option in option_fields(kind)
    }
    return {
        "kind": f"{kind.__module__}:{kind.__qualname__}",
        "name": kind.__name__,
        "doc": read_docstring(kind),
        "origin": find_origin(engine),
        "options": options,
        "capabilities": sorted(engine.capabilities - find_lost_capabilities(1)),
        "processes_limit": engine.processes_limit,
        "requests_limit": engine.requests_limit,
        "has_default_model": kind.default_model is not BaseEngine.default_model,
    }


if __name__ == "__main__":
    answer_parent(answer_question)
