"""What both session bases are alike in: what was checked, and what they say of themselves."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evalution_core import (
    BaseInferenceSession,
    Capability,
    CheckResult,
    EngineRuntimeError,
    GenerationOutput,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
    UnsupportedRequestError,
)
from evalution_enginekit.admission import Admission, check_batch_size
from evalution_enginekit.scoring import ScoringJob, rolling_output
from evalution_enginekit.self_check import self_check
from evalution_enginekit.tokenizer import Tokenizer
from evalution_enginekit.tokens import TokenScore, TokenSpan

READ_AHEAD = 2
"""Requests that wait prepared, so that a free slot is refilled at once."""


class KitSession(BaseInferenceSession):
    """The part of a session that doesn't depend on how its runtime is called.

    Args:
        engine: the engine's public name, for messages.
        capabilities: what this session can do.
        max_model_len: how many tokens the model can be fed, where that is known.
        dtype: name of the arithmetic; None: unknown.
        lacking: why a capability of the engine is missing here, for messages.
    """

    def __init__(
        self,
        *,
        engine: str,
        capabilities: frozenset[Capability],
        max_model_len: int | None,
        dtype: str | None,
        lacking: Mapping[Capability, str] | None = None,
    ):
        self._engine = engine
        self._capabilities = capabilities
        self._known_window = max_model_len
        self._dtype = dtype
        self._admission = Admission(engine, capabilities, lacking)
        self._check_lock = threading.Lock()
        self._check_result: CheckResult | None = None

    @abstractmethod
    def _ensure_open(self) -> None:
        """Raise `SessionClosedError` once the session is closed."""

    @abstractmethod
    def _self_check(self) -> CheckResult:
        """Compare the scoring path with itself and others; runs once, before the first score."""

    @abstractmethod
    def _score_spans(
        self, spans: Sequence[TokenSpan], batch_size: int | None = None
    ) -> list[TokenScore]:
        """Scores in the order of `spans`; the first error of a span is raised."""

    @abstractmethod
    def _complete_ids(self, token_ids: Sequence[int], length: int) -> GenerationOutput:
        """Greedy continuation of ids with its log-probabilities, through the next-token path."""

    def _describe(self) -> dict[str, Any]:
        """What `describe_execution` adds to, or puts in place of, what the kit knows."""
        return {}

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._capabilities

    def check(self) -> CheckResult:
        self._ensure_open()
        with self._check_lock:
            if not {Capability.LOGLIKELIHOOD, Capability.ROLLING} & self._capabilities:
                return CheckResult("not checkable", f"engine {self._engine} doesn't score")
            if self._check_result is None:
                self._check_result = self._self_check()
            return self._check_result

    def describe_execution(self) -> dict[str, Any]:
        check = self._check_result
        return {
            "backend": self._engine,
            "device": None,
            "dtype": self._dtype,
            "batching": self._batching,
            "attention": None,
            "max_model_len": self._known_window,
            "fallback": None,
            "self_check": check.outcome if check else "not run",
            **self._describe(),
        }

    @property
    def _batching(self) -> str:
        return "continuous" if Capability.REFILL in self._capabilities else "fixed batches"

    def _begin(self, batch_size: int | None, *, streams: bool = False) -> None:
        self._ensure_open()
        check_batch_size(batch_size)
        if streams and Capability.STREAM not in self._capabilities:
            raise UnsupportedRequestError(f"engine {self._engine} can't stream")

    def _compared_paths(self, tokenizer: Tokenizer, max_model_len: int) -> CheckResult:
        """The self check on ids, against the next-token path where that tells log-probabilities."""
        compares = {Capability.GENERATE, Capability.LOGPROBS} <= self._capabilities
        return self_check(
            tokenizer,
            complete=self._complete_ids if compares else None,
            score=self._score_spans,
            max_model_len=max_model_len,
            dtype=self._dtype or "unknown",
        )

    def _ensure_checked(self) -> None:
        """Raise `EngineRuntimeError` if the self check failed: such a session must not score."""
        result = self.check()
        if result.outcome == "failed":
            raise EngineRuntimeError(
                f"engine {self._engine} failed its self check and refuses to score: {result.detail}"
            )


def span_job(span: TokenSpan) -> ScoringJob:
    """A job that gives the score of a span as it is."""
    return ScoringJob(span, _itself, {})


def rolled(
    requests: Sequence[RollingLoglikelihoodRequest],
    texts: Sequence[Sequence[TokenSpan]],
    scores: Iterator[TokenScore],
) -> list[RollingLoglikelihoodOutput]:
    """The outputs of texts, of each text's windows and of the scores of all windows in order."""
    return [
        rolling_output(request, windows, [next(scores) for _ in windows])
        for request, windows in zip(requests, texts, strict=True)
    ]


def _itself(score: TokenScore) -> TokenScore:
    return score
