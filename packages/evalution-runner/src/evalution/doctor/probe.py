"""Tries one engine in a process of its own: `python -m evalution.doctor.probe`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from evalution.doctor.child import Facts, answer_parent
from evalution.error_boundary import wrap_errors
from evalution.redaction import mask_text, register_secrets
from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    Capability,
    ConfigurationError,
    EngineUnavailableError,
    EvalutionError,
    GenerationRequest,
    LoglikelihoodRequest,
    Model,
)
from evalution_core.discovery import ENGINES, EngineEntry
from evalution_core.plugins import PluginEntry
from evalution_core.redaction import redact

TINY = "builtin:tiny"
"""The model that an engine is tried on where none is named."""
PROMPT, ANSWER, LOGPROB = "Question: What is 3 + 4?\nAnswer:", " 3 + 4 = 7\n#### 7", -0.31399
"""A prompt, the greedy completion of `builtin:tiny`, and its log-likelihood in float64."""
_TOLERANCE = 0.05
"""Nats by which low precision may be off over the whole answer; a wrong score is off by more."""


def answer_question(question: Mapping[str, Any]) -> Iterator[Facts]:
    """Try the engine of the question."""
    register_secrets(question["options"])
    name, value, distribution, version = question["entry"]
    entry = PluginEntry(name, value, distribution, version, ENGINES)
    return probe_engine(entry, question["options"], question["model"])


def probe_engine(
    entry: EngineEntry, options: Mapping[str, Any], model: str | None
) -> Iterator[Facts]:
    """Find out, step by step, what an engine can do, and whether it answers.

    The facts are `capabilities`, `runtime`, and one of `proof` (it answered, and how), `untried`
    (why it was not asked) and `error`; `stage` names what comes next, None at the end.
    """
    yield {"stage": "its import"}
    try:
        kind = entry.load()
        with wrap_errors("its options", ConfigurationError):
            kind.options_schema()
            capabilities = sorted(kind.capabilities)
        yield {"capabilities": capabilities, "stage": "the import of its runtime"}
        engine = _make_engine(kind, options)
        if isinstance(engine, str):
            yield {"untried": engine}
        else:
            with wrap_errors("describe_runtime", EngineUnavailableError):
                runtime = redact(engine.describe_runtime())
            yield {"runtime": runtime}
            yield from _try_engine(engine, options, model)
    except EvalutionError as error:
        yield {"error": mask_text(str(error))}
    yield {"stage": None}


def _make_engine(kind: type[BaseEngine], options: Mapping[str, Any]) -> BaseEngine | str:
    """Return the engine, or the reason why it can't be made without options."""
    try:
        with wrap_errors("making it", ConfigurationError):
            register_secrets(engine := kind.from_options(options))
    except ConfigurationError as error:
        if options:
            raise
        return mask_text(str(error))
    return engine


def _try_engine(
    engine: BaseEngine, options: Mapping[str, Any], model: str | None
) -> Iterator[Facts]:
    if not options and type(engine).default_model is not BaseEngine.default_model:
        yield {"untried": "it asks a server, and none was named"}
        return
    with wrap_errors("default_model", EngineUnavailableError):
        path = model or engine.default_model() or TINY
    yield {"stage": f"loading {path}"}
    try:
        with wrap_errors(f"loading {path}", EngineUnavailableError):
            session = engine.build(Model(path=path))
    except ConfigurationError as error:
        if model is not None or options:
            raise
        yield {"untried": mask_text(str(error))}
        return
    yield {"stage": f"a request to {path}"}
    with wrap_errors(f"a request to {path}"), session:
        yield {"proof": _ask(session, path), "stage": "closing"}


def _ask(session: BaseInferenceSession, path: str) -> str:
    """Return what the model answered.

    Raises:
        EngineUnavailableError: it is not what the model answers on other engines.
    """
    can = session.capabilities
    if Capability.LOGLIKELIHOOD in can:
        (scored,) = session.loglikelihood([LoglikelihoodRequest(PROMPT, ANSWER)])
        found = f"{scored.token_count} tokens of {path} scored, {scored.logprob:.4f} nats"
        right = f"{LOGPROB:.4f} nats"
        is_right = abs(scored.logprob - LOGPROB) <= _TOLERANCE
        is_possible = math.isfinite(scored.logprob) and scored.logprob <= 0 < scored.token_count
    else:
        is_chat = Capability.CHAT in can and path != TINY
        messages = [{"role": "user", "content": PROMPT}] if is_chat else None
        request = GenerationRequest(None if messages else PROMPT, messages, max_new_tokens=16)
        (completed,) = session.generate([request])
        found, right = f"{path} completed a prompt with {completed.text!r}", repr(ANSWER)
        is_right, is_possible = completed.text == ANSWER, bool(completed.text)
    if path == TINY and not is_right:
        raise EngineUnavailableError(f"wrong numbers: {found}, and {right} are right")
    if not is_possible:
        raise EngineUnavailableError(f"wrong numbers: {found}")
    return found + (", as it should be" if path == TINY else "")


if __name__ == "__main__":
    answer_parent(answer_question)
