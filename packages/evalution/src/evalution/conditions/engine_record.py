"""What a result says about the engine, and about the rules every engine scores by."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from typing import Any, Protocol, runtime_checkable

from evalution.conditions.tokenizer_record import tokenizer_record
from evalution.foreign_code import foreign_errors
from evalution_core import BaseEngine, BaseInferenceSession, available, redact

SCORING_POLICY: dict[str, Any] = {
    "boundary": "joint: encode(context + continuation) cut at len(encode(context)); trailing "
    "whitespace of the context belongs to the continuation",
    "bos": "exactly one where the tokenizer adds one; never doubled",
    "empty_context": "conditioned on BOS, else EOS",
    "truncation": "context or prompt cut from the left and counted; a continuation never",
    "windows": "rolling: disjoint windows of max_model_len, each token scored once, BOS never",
    "arithmetic": "log-softmax in float32 or wider",
    "failed_samples": "count as wrong in accuracies, are left out of perplexities",
}


def engine_record(
    engine: BaseEngine | None, session: BaseInferenceSession | None
) -> dict[str, Any]:
    """Name, package, redacted options and capabilities; no session is touched."""
    if engine is None:
        kind = type(session)
        return {"name": None, "session": f"{kind.__module__}:{kind.__qualname__}", "options": {}}
    name, package, version = _origin(type(engine))
    with foreign_errors(f"engine {type(engine).__name__}: options and capabilities"):
        options, capabilities = engine.to_dict(), sorted(engine.capabilities)
    return {
        "name": name,
        "distribution": package,
        "version": version,
        "options": options,
        "capabilities": capabilities,
        "execution": None,
        "identity": None,
        "tokenizer": None,
        "self_check": None,
    }


@runtime_checkable
class HoldsEngine(Protocol):
    """An engine that only runs another one, such as `Replicas`: it changes no number."""

    @property
    def inner(self) -> BaseEngine: ...


def answering_engine(engine: BaseEngine) -> BaseEngine:
    """The engine that gives the answers: `engine`, or what stands within it."""
    while isinstance(engine, HoldsEngine):
        engine = engine.inner
    return engine


def answering_software(engine: BaseEngine | None) -> dict[str, str]:
    """The versions of the engine that answers and of its runtime, as far as they are known."""
    if engine is None:
        return {}
    answering = answering_engine(engine)
    with foreign_errors("describe_runtime"):
        runtime = answering.describe_runtime() or {}
    found = {"engine": _origin(type(answering))[2], "runtime": runtime.get("version")}
    return {name: str(version) for name, version in found.items() if version is not None}


def record_execution(record: dict[str, Any], session: BaseInferenceSession) -> None:
    """Note what is really in use; it may change while a session lives, so note it again."""
    with foreign_errors("describe_execution"):
        record["execution"] = redact(session.describe_execution())


def record_identity(record: dict[str, Any], session: BaseInferenceSession) -> None:
    """Note what answers: revision or file hashes, tokenizer, and what the session can do."""
    with foreign_errors("identity"):
        record["identity"] = redact(session.identity())
    record["tokenizer"] = tokenizer_record(session)
    with foreign_errors("capabilities"):
        if (capabilities := session.capabilities) is not None:
            record["capabilities"] = sorted(capabilities)


def _origin(kind: type[BaseEngine]) -> tuple[str, str | None, str | None]:
    value = f"{kind.__module__}:{kind.__qualname__}"
    for entry in available():
        if entry.value == value:
            return entry.name, entry.distribution, entry.version
    package = kind.__module__.partition(".")[0]
    # An editable install lists no files; its package is then found by its own name.
    for name in (*packages_distributions().get(package, ()), package):
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        return value, found.name, found.version
    return value, None, None
