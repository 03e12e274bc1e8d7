"""Errors that Evalution raises, one class per reaction of the caller.

    EvalutionError
    ├── ConfigurationError (ValueError)           edit the engine, model or spec
    │   └── UnknownEngineError (LookupError)      install or name another engine
    ├── EngineUnavailableError (ImportError)      install or upgrade the runtime, choose a device
    ├── InvalidRequestError (ValueError)          this request is wrong on every engine
    │   └── ContextLengthError                    … because it doesn't fit the model
    ├── UnsupportedRequestError (NotImplementedError)   a right request; this engine can't serve it
    ├── SessionClosedError (RuntimeError)         build a new session
    └── EngineRuntimeError (RuntimeError)         the runtime failed; its own error is `__cause__`

Every one survives pickling with its attributes. A cause is not pickled itself, since its class may
not exist where it arrives: it becomes a `RemoteCause` with the type's name and the text.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NoReturn

from evalution_core.redaction import redact_text


class RemoteCause(Exception):
    """The type name and text of an exception that was raised in another process."""


class EvalutionError(Exception):
    """Base of all errors that Evalution raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        cause = self.__cause__
        if cause is None or isinstance(cause, EvalutionError | RemoteCause):
            carried = cause
        else:
            name = f"{type(cause).__module__}.{type(cause).__qualname__}"
            carried = RemoteCause(f"{name}: {redact_text(str(cause))}")
        return _restore, (type(self), self.args, dict(self.__dict__), carried)


def _restore(
    kind: type[EvalutionError],
    args: tuple[Any, ...],
    attributes: dict[str, Any],
    cause: BaseException | None,
) -> EvalutionError:
    error = kind.__new__(kind, *args)
    error.args = args
    if isinstance(error, ImportError):  # it keeps its text a second time, outside of args
        ImportError.__init__(error, *args)
    error.__dict__.update(attributes)
    error.__cause__ = cause
    return error


class ConfigurationError(EvalutionError, ValueError):
    """An engine option, model field or spec entry is wrong; the message names it."""


class UnknownEngineError(ConfigurationError, LookupError):
    """No installed engine has this name; the message lists those that are installed."""


class EngineUnavailableError(EvalutionError, ImportError):
    """The engine exists, but its runtime is missing, too old, or lacks the asked device."""


class _RequestError(EvalutionError):
    """`failures` maps the index of each bad request of a list call to its own error."""

    def __init__(self, message: str, *, failures: Mapping[int, EvalutionError] | None = None):
        super().__init__(message)
        self.failures: dict[int, EvalutionError] = dict(failures or {})


class InvalidRequestError(_RequestError, ValueError):
    """A request no engine could serve. Raised by a list call before anything ran."""


class ContextLengthError(InvalidRequestError):
    """The request doesn't fit `max_model_len`, and may not or can't be cut."""


class UnsupportedRequestError(_RequestError, NotImplementedError):
    """A valid request that needs a capability which this engine doesn't have."""


class SessionClosedError(EvalutionError, RuntimeError):
    """The session was closed before, or while, this call was served."""


class EngineRuntimeError(EvalutionError, RuntimeError):
    """The runtime failed. `in_flight` holds the ids of the requests that were lost with it."""

    def __init__(self, message: str, *, in_flight: Sequence[Hashable] = ()):
        super().__init__(message)
        self.in_flight: tuple[Hashable, ...] = tuple(in_flight)


def raise_failures(
    failures: Mapping[int, EvalutionError], total: int, *, are_others_answered: bool = False
) -> NoReturn:
    """Raise one error for the bad requests of a list call, as a rule before any of them ran.

    Its class is the one that all failures share; `InvalidRequestError` if they differ.
    """
    kinds = {type(error) for error in failures.values()}
    kind = kinds.pop() if len(kinds) == 1 else InvalidRequestError
    if not issubclass(kind, InvalidRequestError | UnsupportedRequestError):
        kind = InvalidRequestError
    shown = "; ".join(f"[{index}] {error}" for index, error in sorted(failures.items())[:3])
    more = f"; and {len(failures) - 3} more" if len(failures) > 3 else ""
    rest = "the others were answered" if are_others_answered else "none was run"
    message = f"{len(failures)} of {total} requests refused, {rest}: {shown}{more}"
    raise kind(message, failures=failures)
