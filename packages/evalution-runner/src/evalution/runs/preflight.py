"""Checks of a run before any weights are loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalution.error_boundary import wrap_errors
from evalution.suites.suite import AnySuite, expand_suites
from evalution.user_input import check_count, parse_path, path_errors
from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    Capability,
    ConfigurationError,
    Model,
    UnsupportedRequestError,
    validate_options,
)
from evalution_core.builtins import PREFIX
from evalution_core.engine import check_contract
from evalution_core.plugins import did_you_mean


@dataclass(frozen=True, slots=True)
class EngineAndModel:
    """An engine with its model."""

    engine: BaseEngine
    model: Model


# An absolute path may be the name of a model on a server: its engine knows.
_LOCAL = ("./", "../", "~")


def check_engine(engine: object) -> BaseEngine:
    """Return `engine` if it is one of this contract with valid options.

    Raises:
        ConfigurationError: it is none, or an option is wrong.
        EngineUnavailableError: it was written for another contract.
    """
    if not isinstance(engine, BaseEngine):
        raise ConfigurationError(
            f"engine must be an engine such as engines.Reference(), got {engine!r}"
        )
    validate_options(engine)
    check_contract(type(engine))
    return engine


def check_session(session: object, engine: object, *, isolate: bool) -> None:
    """Raise `ConfigurationError` unless there is an engine or a live session, and not both."""
    if session is None and engine is None:
        raise ConfigurationError("a run needs an engine, or a live session")
    if session is None:
        return
    if not isinstance(session, BaseInferenceSession):
        raise ConfigurationError(
            f"session must be a live session, as an engine's build() gives it, got {session!r}"
        )
    if engine is not None:
        raise ConfigurationError("name an engine or a session, not both: a session has its engine")
    if isolate:
        raise ConfigurationError("isolate needs an engine: a live session is in this process")


def check_limit(limit: int | None) -> None:
    """Raise `ConfigurationError` unless it is no limit, or a count of rows from 1."""
    if limit is not None:
        check_count("limit", limit, least=1)


def check_step(step: int | None) -> None:
    """Raise `ConfigurationError` unless it is no step of training, or a count from 0."""
    if step is not None:
        check_count("step", step, least=0)


def parse_model(model: object) -> Model:
    """Return a model from a `Model`, its fields as a mapping, or its path.

    Raises:
        ConfigurationError: it is none of these, or a field is unknown or of a wrong type.
    """
    if isinstance(model, Model):
        return model
    if isinstance(model, str | Path):
        return Model(str(model))
    if isinstance(model, dict):
        return make_model(model)  # pyright: ignore[reportUnknownArgumentType]
    raise ConfigurationError(f"model must be a Model, a mapping or a path, got {model!r}")


def make_model(fields: dict[str, Any]) -> Model:
    """Return a model from the `model` section of a spec; errors as `parse_model`."""
    known = list(Model.__dataclass_fields__)
    for name in fields:
        if name not in known:
            raise ConfigurationError(
                f"model has no field {name!r}{did_you_mean(str(name), known)} "
                f"(fields: {', '.join(known)})"
            )
    return Model(**fields)


def check_model(model: Model, engine: BaseEngine) -> None:
    """Refuse a model that isn't named, a local one that isn't there, or a revision of one.

    Raises:
        ConfigurationError: the model is one of these.
    """
    if model.path is None:
        with wrap_errors(f"engine {type(engine).__name__}: default_model"):
            default = engine.default_model()
        if default is None:
            raise ConfigurationError(
                f"model.path is missing, and {type(engine).__name__} knows no default model; name "
                "what it loads: a folder, say, or builtin:tiny"
            )
        return
    if model.revision is not None and model.path.startswith((PREFIX, *_LOCAL)):
        raise ConfigurationError(
            f"model.revision={model.revision!r}: {model.path} is on this machine and has no "
            "revisions; leave it out"
        )
    if model.path.startswith(_LOCAL):
        with path_errors(model.path):
            if not parse_path(model.path).exists():
                raise ConfigurationError(f"there is no model folder or file {model.path}")


def check_capabilities(
    suites: Iterable[AnySuite], capabilities: frozenset[Capability], whose: str
) -> None:
    """Raise `UnsupportedRequestError` for the first suite that needs what the engine lacks."""
    with wrap_errors(f"the capabilities {whose}"):
        found = frozenset(capabilities)
        listed = ", ".join(sorted(found)) or "none"
    for suite in suites:
        if lacking := sorted(suite.needs - found):
            raise UnsupportedRequestError(
                f"suite {suite.title!r} needs {', '.join(lacking)}; the capabilities {whose} are "
                f"{listed}"
            )


def parse_tests(tests: object) -> Sequence[AnySuite]:
    """Return the suites of a run's tests, with a set replaced by its suites.

    Raises:
        ConfigurationError: it is no list of suites, an empty one, or a test can't be made suites.
    """
    if not isinstance(tests, list | tuple) or not tests:
        raise ConfigurationError(f"tests must be a list with at least one suite, got {tests!r}")
    return expand_suites(tests)  # pyright: ignore[reportUnknownArgumentType]
