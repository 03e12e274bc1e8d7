"""In the worker: the session, built of a pickled engine and model."""

from __future__ import annotations

import pickle

from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    Capability,
    EngineRuntimeError,
    Model,
    hide,
)


def constructed(engine: bytes, model: bytes) -> tuple[BaseInferenceSession, frozenset[Capability]]:
    """The session, and what its engine declares.

    The pickles come from the program that started this worker, and from nowhere else.
    """
    source, weights = pickle.loads(engine), pickle.loads(model)
    assert isinstance(source, BaseEngine)
    hide(source)  # unpickled, they were not made here: a message may hold their keys
    hide(weights)
    assert isinstance(weights, Model)
    session = source.build(weights)
    if not isinstance(session, BaseInferenceSession):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise EngineRuntimeError(f"build() must return a BaseInferenceSession, got {session!r}")
    return session, source.capabilities
