"""The engine and model under test, their sessions, and the facts that checks read from them."""

from __future__ import annotations

import sys
from collections.abc import Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from importlib.metadata import (
    Distribution,
    PackageNotFoundError,
    distribution,
    packages_distributions,
)
from typing import Any, Final, TypeVar, cast

import pytest

from evalution_conformance.watch import call_on_main_thread, call_unawaited, call_within
from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    Capability,
    GenerationOutput,
    GenerationRequest,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    Model,
    RequestFailure,
    RequestStream,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
    TextCodec,
)
from evalution_core.streams import open_stream as to_stream

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

TOLERANCES: Final = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
"""Nats per token by which two ways to one log-probability may differ, by dtype."""
LONGEST_PROBE = 1024
"""Tokens of the longest probe, where a model's window is longer."""
_WAIT_S = 10.0


class UnmetError(AssertionError):
    """Many checks need something that is missing: one fails over it, the others don't run."""


@dataclass(eq=False)
class Subject:
    """The engine under test, one session that checks share, and fresh ones for those that close.

    Args:
        engine: the configuration to build sessions from.
        model: what it is built for.
        oracle: another engine whose answers count as correct, for a model without reference values.
        oracle_model: the model of that engine; None: the same model.
        untemplated: the model, or one like it, without a chat template.
        declared_tolerance: nats per token; None: by the dtype that the session reports.
        declared_reference_tolerance: nats per token from answers that count as correct; None:
            the same tolerance.
        max_new_tokens: length of the completions that checks request.
        timeout: seconds for one check, not counting the building of sessions.
        incomplete: the model, or one like it, without one of its weights.
    """

    engine: BaseEngine
    model: Model
    oracle: BaseEngine | None = None
    oracle_model: Model | None = None
    untemplated: Model | None = None
    declared_tolerance: float | None = None
    declared_reference_tolerance: float | None = None
    max_new_tokens: int = 16
    timeout: float = 60.0
    incomplete: Model | None = None
    returns_streams: bool = field(default=False, init=False)
    stuck: int = field(default=0, init=False)
    """Checks that took longer than `timeout`."""
    _session: BaseInferenceSession | None = field(default=None, init=False)
    _narrow: Subject | None = field(default=None, init=False)
    _build_error: Exception | None = field(default=None, init=False)
    _reported: set[str] = field(default_factory=set[str], init=False)

    # sessions

    @property
    def session(self) -> BaseInferenceSession:
        """The shared session, built at first use; no check closes it.

        A build that fails isn't tried again.
        """
        if self._build_error is not None:
            raise self._build_error
        if self._session is None:
            try:
                self._session = call_on_main_thread(lambda: self.engine.build(self.model))
            except Exception as error:
                self._build_error = error
                raise
        return self._session

    @contextmanager
    def fresh(
        self, *, engine: BaseEngine | None = None, model: Model | None = None
    ) -> Generator[BaseInferenceSession]:
        """Build a session for one check, closed at the end."""
        built = call_on_main_thread(lambda: (engine or self.engine).build(model or self.model))
        try:
            yield built
        finally:
            built.close()

    @property
    def built(self) -> BaseInferenceSession | None:
        """The shared session, None as long as no check has needed it."""
        return self._session

    def narrow(self) -> Subject:
        """Return this subject, or where its window is longer than probes, one with their length.

        Skips the check if the window can't be set.
        """
        window = self.session.info.max_model_len
        if window is None or window <= LONGEST_PROBE:
            return self
        if self._narrow is None:
            engine = resize(self.engine, LONGEST_PROBE)
            if engine is None:
                pytest.skip(f"a window of {window} tokens, and no option max_model_len to set it")
            self._narrow = replace(self, engine=engine)
        return self._narrow

    def close(self) -> None:
        """Close the shared session."""
        for session in self._release():
            session.close()

    def abandon(self) -> None:
        """Drop a session that hangs: the next check builds another."""
        for session in self._release():
            call_unawaited(session.close)

    def _release(self) -> list[BaseInferenceSession]:
        session, self._session = self._session, None
        narrow, self._narrow = self._narrow, None
        return [*([session] if session else ()), *(narrow._release() if narrow else ())]

    def is_repeated(self, error: Exception) -> bool:
        """Report whether a check has already failed over this error of what many need."""
        if not isinstance(error, UnmetError) and error is not self._build_error:
            return False
        is_known = str(error) in self._reported
        self._reported.add(str(error))
        return is_known

    # what is known

    @property
    def name(self) -> str:
        return type(self.engine).__name__

    @cached_property
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities of the session."""
        return self.session.capabilities

    @cached_property
    def dtype(self) -> Any:
        """Name of the arithmetic, as the session describes its execution."""
        return (self.session.describe_execution() or {}).get("dtype")

    @cached_property
    def tolerance(self) -> float:
        """Largest allowed difference of two log-probabilities of one token, in nats."""
        if self.declared_tolerance is not None:
            return self.declared_tolerance
        if self.dtype not in TOLERANCES:
            known = ", ".join(f"{name} ({value:g})" for name, value in TOLERANCES.items())
            raise UnmetError(
                f"describe_execution() of {self.name} reports dtype {self.dtype!r}, which has no "
                f"tolerance in nats per token; known are {known}. By how much may two calls "
                f"differ? Measure it, and state it in the class as `tolerance = …`"
            )
        return TOLERANCES[self.dtype]

    def require_self_check(self) -> None:
        """Raise `UnmetError` if the session's self check failed: its scores mean nothing."""
        result = self.session.check()
        if result.outcome == "failed":
            raise UnmetError(f"the session's self check failed: {result.detail}")

    @property
    def reference_tolerance(self) -> float:
        """Largest allowed difference from a log-probability that counts as correct, in nats.

        Kernels that round differ from exact arithmetic by more than from themselves.
        """
        declared = self.declared_reference_tolerance
        return self.tolerance if declared is None else declared

    @property
    def call_timeout(self) -> float:
        """Seconds for a single call that must not be blocked by another."""
        return min(max(_WAIT_S, self.timeout / 4), self.timeout / 2)

    @property
    def codec(self) -> TextCodec:
        """The session's tokenizer; skips the check if there is none."""
        tokenizer = self.session.tokenizer
        if tokenizer is None:
            pytest.skip("the session's tokenizer is None")
        return tokenizer

    @property
    def bos_id(self) -> int:
        """The tokenizer's BOS; skips the check if there is none."""
        bos_id = self.codec.bos_id
        if bos_id is None:
            pytest.skip("the model has no BOS token")
        return bos_id

    @property
    def conditioning_id(self) -> int:
        """BOS, else EOS, on which an empty context is conditioned; core's own rule is checked."""
        codec = self.codec
        prefix = codec.bos_id if codec.bos_id is not None else codec.eos_id
        if prefix is None:
            pytest.skip("the model has neither BOS nor EOS")
        return prefix

    @property
    def can_be_empty(self) -> bool:
        """Return False if nothing can stand for an empty context: there is no BOS and no EOS."""
        codec = self.session.tokenizer
        return codec is None or codec.bos_id is not None or codec.eos_id is not None

    @property
    def window(self) -> int:
        """`info.max_model_len`; skips the check if it is unknown."""
        window = self.session.info.max_model_len
        if window is None:
            pytest.skip("the session's info.max_model_len is None")
        return window

    @property
    def probe_length(self) -> int:
        """The window, up to `LONGEST_PROBE`."""
        return min(self.window, LONGEST_PROBE)

    @cached_property
    def distribution(self) -> Distribution | None:
        """The installed distribution that the engine's package comes from."""
        return _find_distribution(type(self.engine).__module__.partition(".")[0])

    def declares(self, capability: Capability) -> bool:
        return capability in self.capabilities

    # calls

    def request(self, prompt: str, **fields: Any) -> GenerationRequest:
        """Make a generation request of the usual length."""
        fields.setdefault("max_new_tokens", self.max_new_tokens)
        return GenerationRequest(prompt, **fields)

    def generate(self, *requests: GenerationRequest) -> list[GenerationOutput]:
        return self.session.generate(list(requests))

    def complete(self, request: GenerationRequest) -> GenerationOutput:
        (output,) = self.session.generate([request])
        return output

    def score(self, *requests: LoglikelihoodRequest) -> list[LoglikelihoodOutput]:
        return self.session.loglikelihood(list(requests))

    def roll(self, *requests: RollingLoglikelihoodRequest) -> list[RollingLoglikelihoodOutput]:
        return self.session.loglikelihood_rolling(list(requests))

    def score_ids(
        self, context_ids: Sequence[int], continuation_ids: Sequence[int]
    ) -> LoglikelihoodOutput:
        (output,) = self.score(
            LoglikelihoodRequest(
                context_input_ids=list(context_ids), continuation_input_ids=list(continuation_ids)
            )
        )
        return output

    def prompt_ids(self, text: str) -> list[int]:
        """Return the ids that the model is fed for `text`, the leading BOS included."""
        token_ids = self.codec.encode(text)
        leading = list(self.codec.leading_ids)
        return token_ids if token_ids[: len(leading)] == leading else leading + token_ids


def _find_distribution(package: str) -> Distribution | None:
    # An editable installation lists no packages; there the name is as good as sure.
    for name in [*find_owners(package), package]:
        try:
            return distribution(name)
        except PackageNotFoundError:
            continue
    return None


def find_owners(package: str) -> Sequence[str]:
    """Return the names of the distributions that have this top-level package."""
    return _list_owners(tuple(sys.path)).get(package, ())


@lru_cache(maxsize=1)
def _list_owners(path: tuple[str, ...]) -> Mapping[str, Sequence[str]]:
    """Read the lists of all files on `path`, which is `sys.path`, once: it takes a while."""
    return packages_distributions()


def resize(engine: BaseEngine, max_model_len: int) -> BaseEngine | None:
    """Return the engine with another window; None if that is not one of its options."""
    if not hasattr(engine, "max_model_len"):
        return None
    return replace(cast(Any, engine), max_model_len=max_model_len)


def require_output(result: T | RequestFailure) -> T:
    """Return the output of a continuous call; raise a failure."""
    if isinstance(result, RequestFailure):
        raise result.error
    return result


def collect_outputs(results: Iterator[tuple[K, T | RequestFailure]]) -> dict[K, T]:
    """Return outputs by key; a key that comes twice, or a failure, fails the check."""
    found: dict[K, T] = {}
    for key, result in results:
        assert key not in found, f"the key {key!r} came twice"
        found[key] = require_output(result)
    return found


CAP = 2
"""Requests that may run at once in it."""


@contextmanager
def open_stream(
    subject: Subject, requests: Iterator[tuple[int, GenerationRequest]]
) -> Generator[RequestStream[int, GenerationOutput | RequestFailure]]:
    """Open a stream with a small batch; it is closed at the end, within the time of a call."""

    def call(
        source: Iterable[tuple[int, GenerationRequest]],
    ) -> Iterator[tuple[int, GenerationOutput | RequestFailure]]:
        results = subject.session.generate_continuous(source, batch_size=CAP)
        subject.returns_streams = isinstance(results, RequestStream)
        return results

    stream = to_stream(call, requests)
    try:
        yield stream
    except BaseException:
        call_unawaited(stream.close)  # it may hang, and must not hide what was found
        raise
    call_within(stream.close, timeout=subject.call_timeout, doing="closing a stream")


def read_one(stream: Iterator[tuple[int, GenerationOutput | RequestFailure]]) -> None:
    """Take one result, which must be an output."""
    _, result = next(stream)
    require_output(result)
