"""Values and errors on their way between processes."""

from __future__ import annotations

import pickle
import sys
from dataclasses import fields, is_dataclass
from multiprocessing import spawn
from typing import Any

from evalution.foreign_code import foreign_errors
from evalution.workers.wire import PROTOCOL
from evalution_core import (
    BaseEngine,
    ConfigurationError,
    EngineRuntimeError,
    EvalutionError,
    InvalidRequestError,
    Model,
    scrub,
)

_MAIN = b"__main__"


def pack_configuration(value: BaseEngine | Model) -> bytes:
    """A pickle of an engine or model.

    Raises:
        ConfigurationError: it can't be pickled; names the option or field.
    """
    kind = type(value)
    name = f"engine {kind.__name__}" if isinstance(value, BaseEngine) else "the model"
    problem = _problem_of(value)
    if problem is None:
        return pickle.dumps(value, PROTOCOL)
    if is_dataclass(value):
        for field in fields(value):
            inner = _problem_of(getattr(value, field.name))
            if inner is not None:
                what = "option" if isinstance(value, BaseEngine) else "field"
                found = type(getattr(value, field.name)).__name__
                name = f"{what} {field.name!r} of {name}, a {found},"
                problem = inner
                break
    raise ConfigurationError(
        f"{name} can't be sent to a worker process, since it can't be pickled: {problem}; use "
        "classes and functions that stand at the top of a module, and plain values, or run without "
        "worker processes"
    )


def _problem_of(value: object) -> str | None:
    try:
        with foreign_errors("pickling"):  # a __reduce__ may raise anything
            pickle.dumps(value, PROTOCOL)
    except EvalutionError as error:
        return str(error.__cause__ or error)
    return None


def main_module(*pickles: bytes) -> dict[str, Any]:
    """What a child needs to import this program's main module; empty if no pickle refers to it.

    Raises:
        ConfigurationError: one does, and the main module is no file: a prompt or a notebook.
    """
    if not any(_MAIN in data for data in pickles):
        return {}
    data = spawn.get_preparation_data("evalution worker")
    found = {name: value for name, value in data.items() if name.startswith("init_main_from")}
    if not found:
        main = getattr(sys.modules["__main__"], "__file__", None)
        where = f"{main}, which can't be imported" if main else "a prompt or a notebook"
        raise ConfigurationError(
            f"the engine or model uses a class that is defined in {where}, so a worker process "
            "can't get at it; put the class into a module of its own"
        )
    return found


def pack_request(request: object) -> bytes:
    """A pickle of what a call sends.

    Raises:
        InvalidRequestError: it can't be pickled.
    """
    try:
        with foreign_errors("pickling"):
            return pickle.dumps(request, PROTOCOL)
    except EvalutionError as error:
        raise InvalidRequestError(
            f"the request can't be sent to a worker process: {error.__cause__ or error}"
        ) from error.__cause__


def pack_error(error: BaseException, doing: str) -> bytes:
    """An error as the contract's class for it; a foreign one becomes an `EngineRuntimeError`."""
    if isinstance(error, EvalutionError):
        known = error
    else:
        known = EngineRuntimeError(scrub(f"{doing}: {type(error).__name__}: {error}"))
        known.__cause__ = error
    text = f"{type(known).__name__}: {scrub(str(known))}"
    return pickle.dumps((_pickled_error(known), text), PROTOCOL)


def unpack_error(data: bytes) -> EvalutionError:
    """The error of `pack_error`, with class, text and cause.

    Where its class can't be had, class and text become the text of an `EngineRuntimeError`.
    """
    pickled, text = pickle.loads(data)
    if pickled is not None:
        try:
            with foreign_errors("unpickling"):
                error = pickle.loads(pickled)
        except EvalutionError:
            error = None
        if isinstance(error, EvalutionError):
            return error
    return EngineRuntimeError(text)


def _pickled_error(error: EvalutionError) -> bytes | None:
    if _problem_of(error) is None:
        return pickle.dumps(error, PROTOCOL)
    return None
