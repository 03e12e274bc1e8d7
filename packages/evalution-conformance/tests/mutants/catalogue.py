"""The mutants by name, and the checks that must catch each."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from evalution_conformance.subject import Subject
from evalution_core import BaseEngine, Model
from mutants.toy import (
    INCOMPLETE,
    SESSIONS,
    UNTEMPLATED,
    WEIGHTS,
    Toy,
    ToyHooks,
    ToyRequestSession,
    ToySession,
)

S = TypeVar("S", bound=type[ToyHooks])
E = TypeVar("E", bound=Callable[[], BaseEngine])
P = TypeVar("P", bound=Callable[[], AbstractContextManager[BaseEngine]])

REQUESTS = "OnRequests"
"""Ends the names of mutants whose session takes whole requests."""
_TIMEOUT_S = 8.0


@dataclass(frozen=True, slots=True)
class Mutant:
    """`open` gives the faulty engine as long as its context lasts."""

    name: str
    fault: str
    caught_by: tuple[str, ...]
    open: Callable[[], AbstractContextManager[BaseEngine]]


MUTANTS: dict[str, Mutant] = {}


def toy_subject(engine: BaseEngine, *, timeout: float = _TIMEOUT_S) -> Subject:
    """A mutant, or the sound toy, with the sound toy as its oracle."""
    return Subject(
        engine,
        Model(path=WEIGHTS),
        oracle=Toy(),
        untemplated=Model(path=UNTEMPLATED),
        timeout=timeout,
        incomplete=Model(path=INCOMPLETE),
    )


def session_fault(*caught_by: str) -> Callable[[S], S]:
    """The class is a session with a fault, which its docstring names."""

    def register(session: S) -> S:
        SESSIONS[session.__name__] = session
        name = session.__name__
        _add(name, session.__doc__, caught_by, lambda: _always(Toy(fault=name)))
        return session

    return register


def shared_fault(*caught_by: str) -> Callable[[S], S]:
    """The class is a fault that sessions of both bases can have; each is a mutant."""

    def register(fault: S) -> S:
        for base, suffix in ((ToySession, ""), (ToyRequestSession, REQUESTS)):
            name = fault.__name__ + suffix
            session_fault(*caught_by)(type(name, (fault, base), {"__doc__": fault.__doc__}))
        return fault

    return register


def engine_fault(*caught_by: str) -> Callable[[E], E]:
    """The engine has a fault, which its docstring names; built with its defaults."""

    def register(engine: E) -> E:
        _add(engine.__name__, engine.__doc__, caught_by, lambda: _always(engine()))
        return engine

    return register


def package_fault(*caught_by: str) -> Callable[[P], P]:
    """The function writes and imports a distribution with a fault, and gives its engine."""

    def register(package: P) -> P:
        _add(package.__name__, package.__doc__, caught_by, package)
        return package

    return register


def _add(
    name: str,
    fault: str | None,
    caught_by: tuple[str, ...],
    open_: Callable[[], AbstractContextManager[BaseEngine]],
) -> None:
    if not fault or not caught_by or name in MUTANTS:
        raise ValueError(f"the mutant {name} needs a fault, a check and a name of its own")
    MUTANTS[name] = Mutant(name, fault, caught_by, open_)


@contextmanager
def _always(engine: BaseEngine) -> Generator[BaseEngine]:
    yield engine
