"""Sound engines of other shapes: few capabilities, fixed batches, text alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evalution_conformance import PRECISION_CHECKS, EngineConformance
from evalution_conformance.suite import find_checks, get_needs
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
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
    SessionInfo,
)
from mutants.toy import CAPABILITIES, UNTEMPLATED, MergingTokenizer, Toy, ToySession


@dataclass(slots=True)
class Completes(Toy):
    """Completes prompts and can do nothing else."""

    capabilities = frozenset({Capability.GENERATE})


@dataclass(slots=True)
class Scores(Toy):
    """Scores ids and text, and generates nothing."""

    capabilities = frozenset({Capability.LOGLIKELIHOOD, Capability.ROLLING, Capability.TOKEN_IDS})


@dataclass(slots=True)
class FixedBatches(Toy):
    """Runs a batch to its end before the next one."""

    capabilities = CAPABILITIES - {Capability.CONTINUOUS_BATCHING}


@dataclass(slots=True)
class TextAlone(Toy):
    """Reports nothing that a remote API may not know: no tokenizer, ids, counts or window."""

    capabilities = CAPABILITIES - {
        Capability.DISTRIBUTIONS,
        Capability.LOGPROBS,
        Capability.PROMPT_TOP_LOGPROBS,
        Capability.STREAM,
        Capability.TOKEN_IDS,
        Capability.TRUNCATION,
    }

    def build(self, model: Model) -> BaseInferenceSession:
        return TextSession(ToySession(self, model))


class TextSession(BaseInferenceSession):
    """Written on the contract itself."""

    @property
    def info(self) -> SessionInfo:
        return SessionInfo(TextAlone.capabilities)

    def __init__(self, inner: ToySession):
        self._inner = inner

    def generate(
        self, requests: Sequence[GenerationRequest], *, batch_size: int | None = None
    ) -> list[GenerationOutput]:
        return [_plain(o) for o in self._inner.generate(requests, batch_size=batch_size)]

    def generate_continuous(
        self, requests: Iterable[tuple[Any, GenerationRequest]], *, batch_size: int | None = None
    ) -> Iterator[tuple[Any, GenerationOutput | RequestFailure]]:
        for key, found in self._inner.generate_continuous(requests, batch_size=batch_size):
            yield key, _plain(found) if isinstance(found, GenerationOutput) else found

    def loglikelihood(
        self, requests: Sequence[LoglikelihoodRequest], *, batch_size: int | None = None
    ) -> list[LoglikelihoodOutput]:
        return [
            replace(output, token_ids=None, token_logprobs=None, is_greedy=None)
            for output in self._inner.loglikelihood(requests, batch_size=batch_size)
        ]

    def loglikelihood_rolling(
        self, requests: Sequence[RollingLoglikelihoodRequest], *, batch_size: int | None = None
    ) -> list[RollingLoglikelihoodOutput]:
        return [
            replace(output, token_ids=None, token_logprobs=None)
            for output in self._inner.loglikelihood_rolling(requests, batch_size=batch_size)
        ]

    def gc(self) -> None:
        self._inner.gc()

    def close(self) -> None:
        self._inner.close()

    def describe_execution(self) -> dict[str, Any]:
        return self._inner.describe_execution() | {"max_model_len": None, "self_check": None}


def _plain(output: GenerationOutput) -> GenerationOutput:
    return replace(
        output, token_ids=None, prompt_tokens=None, completion_tokens=None, truncated_tokens=None
    )


@dataclass(slots=True)
class SumsAlone(Toy):
    """Scores without the values of tokens, and doesn't know what is greedy."""

    def build(self, model: Model) -> BaseInferenceSession:
        return _SumsAlone(self, model)


class _SumsAlone(ToySession):
    loglikelihood_continuous = BaseInferenceSession.loglikelihood_continuous  # pyright: ignore[reportAssignmentType]

    def change_score(
        self, request: LoglikelihoodRequest, output: LoglikelihoodOutput
    ) -> LoglikelihoodOutput:
        return replace(output, token_ids=None, token_logprobs=None, is_greedy=None)

    def change_rolling_score(
        self, request: RollingLoglikelihoodRequest, output: RollingLoglikelihoodOutput
    ) -> RollingLoglikelihoodOutput:
        return replace(output, token_ids=None, token_logprobs=None)


@dataclass(slots=True)
class Plain(Toy):
    """Has a required option, sessions that can't stream, results of a plain iterator, no BOS."""

    name: str = field(kw_only=True)

    def build(self, model: Model) -> BaseInferenceSession:
        return _PlainSession(self, model)


class _Unmarked(MergingTokenizer):
    """Has neither BOS nor EOS."""

    bos_id = eos_id = None
    leading_ids = ()


class _PlainSession(ToySession):
    tokenizer_class = _Unmarked

    @property
    def info(self) -> SessionInfo:
        known = super().info
        return replace(known, capabilities=known.capabilities - {Capability.STREAM})

    def stream(self, requests: Any, *, batch_size: int | None = None) -> Any:
        return BaseInferenceSession.stream(self, requests, batch_size=batch_size)

    def generate_continuous(self, requests: Any, *, batch_size: int | None = None) -> Any:
        return filter(None, super().generate_continuous(requests, batch_size=batch_size))


class _Shape(EngineConformance):
    oracle = Toy()
    model = Model(path="toy")
    untemplated = Model(path=UNTEMPLATED)


def find_refused(engine: BaseEngine) -> set[str]:
    """Return the names of the checks whose requests this engine must refuse."""
    return {
        name
        for name, check in find_checks(EngineConformance).items()
        if not get_needs(check) <= engine.capabilities
    }


# The checks of a session's life that ask whatever the engine can do.
_ANY_CALL = {"test_every_call_after_close_is_refused", "test_gc_changes_no_answer"}


class TestCompletes(_Shape):
    engine = Completes()
    checks = frozenset({*_ANY_CALL, *find_refused(engine)})


class TestScores(_Shape):
    engine = Scores()
    checks = frozenset({*_ANY_CALL, *find_refused(engine)})


class TestFixedBatches(_Shape):
    engine = FixedBatches()
    checks = frozenset(
        {
            "continuous",
            "test_closing_ends_an_open_stream",
            "test_a_batch_answers_as_its_requests_alone",
        }
    )


class TestLongWindow(_Shape):
    # More than a window is sent to a shorter one, not to this.
    engine = Toy(max_model_len=1 << 20)
    checks = frozenset({"boundary", "rolling", "test_a_long_prompt_is_cut_from_the_left"})


class TestSumsAlone(_Shape):
    engine = SumsAlone()
    oracle = SumsAlone()
    checks = PRECISION_CHECKS


class TestPlain(_Shape):
    engine = Plain(name="required")
    oracle = None
    checks = frozenset(
        {
            "lifecycle",
            "boundary",
            "test_every_key_comes_once",
            "test_a_stream_completes_as_generate_does",
            "test_cancelling_one_request_leaves_the_others",
            "test_an_ill_typed_option_is_refused",
            "test_an_unknown_option_is_refused_with_the_nearest_name",
        }
    )


class TestTextAlone(_Shape):
    # Without ids, counts and a window, nearly every check of answers takes another path.
    engine = TextAlone()
    checks = frozenset(
        {
            *_ANY_CALL,
            "generation",
            "sampling",
            "stopping",
            "scoring",
            "boundary",
            "rolling",
            "isolation",
        }
    )
