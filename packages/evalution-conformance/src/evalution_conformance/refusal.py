"""A call that must be refused, and with which error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from evalution_core import UnsupportedRequestError

E = TypeVar("E", bound=Exception)


def refusal_of(call: Callable[[], Any], kind: type[E], asked: str) -> E:
    """The error of this class that `call` raises.

    Raises:
        AssertionError: another error came, or none.
        UnsupportedRequestError: a capability is missing; the run of the check decides about it.
    """
    try:
        found = call()
    except kind as error:
        return error
    except UnsupportedRequestError:
        raise
    except Exception as error:
        raise AssertionError(
            f"{asked} must be refused with {kind.__name__}, but came {error!r}"
        ) from error
    raise AssertionError(f"{asked} must be refused with {kind.__name__}, but gave {found!s:.200}")
