"""Correct answers: stored float64 values of `builtin:tiny`, or those of an oracle engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

import pytest

from evalution_conformance.probes import CHATS, PAIRS, PROMPTS, SENTENCE, TEXTS
from evalution_conformance.subject import Subject, resize
from evalution_core import (
    BaseInferenceSession,
    Capability,
    GenerationRequest,
    LoglikelihoodRequest,
    RollingLoglikelihoodRequest,
)
from evalution_core.builtins import builtin_path
from evalution_core.encoding import encode_with_leading
from evalution_core.requests import Message

MODEL = "builtin:tiny"
SMALL_WINDOW = 64
"""The `max_model_len` for which there are values of cut contexts and of windows."""


@dataclass(frozen=True, slots=True)
class ScoringCase:
    context: str
    continuation: str
    token_logprobs: list[float]
    is_greedy: bool | None = None
    context_ids: list[int] | None = None
    continuation_ids: list[int] | None = None
    max_model_len: int | None = None
    truncated_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class GenerationCase:
    """`top2_gaps`: by how much each step's token was ahead of the next one, in nats."""

    max_new_tokens: int
    text: str
    finish_reason: str | None
    token_ids: list[int] | None = None
    top2_gaps: list[float] = field(default_factory=list[float])
    prompt: str | None = None
    messages: Sequence[Message] | None = None
    prompt_ids: list[int] | None = None

    def request(self, **fields: Any) -> GenerationRequest:
        return GenerationRequest(
            self.prompt, self.messages, max_new_tokens=self.max_new_tokens, **fields
        )


@dataclass(frozen=True, slots=True)
class RollingCase:
    text: str
    token_logprobs: list[float]
    token_ids: list[int] | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class ReferenceValues:
    """Cases of a model; those of `truncation` hold for their own `max_model_len` alone."""

    scoring: list[ScoringCase]
    truncation: list[ScoringCase]
    generation: list[GenerationCase]
    chat: list[GenerationCase]
    rolling: list[RollingCase]


def load_reference_values(subject: Subject) -> ReferenceValues:
    """Return the correct answers for the subject's model; skips the check if there are none."""
    if subject.oracle is not None:
        return _ask_oracle(subject)
    if subject.model.path != MODEL:
        pytest.skip(
            f"there are reference values for {MODEL} alone, and no `oracle` engine is given for "
            f"{subject.model.name}"
        )
    return _read_builtin()


@cache
def _read_builtin() -> ReferenceValues:
    stored = json.loads(builtin_path(MODEL, "reference_values").read_text("utf-8"))
    for case in stored["chat"]:
        del case["rendered"]
    return ReferenceValues(
        [ScoringCase(**case) for case in stored["scoring"]],
        [ScoringCase(**case) for case in stored["truncation"]],
        [GenerationCase(**case) for case in stored["generation"]],
        [GenerationCase(**case) for case in stored["chat"]],
        [RollingCase(**case) for case in stored["rolling"]],
    )


@lru_cache(maxsize=1)
def _ask_oracle(subject: Subject) -> ReferenceValues:
    oracle = subject.oracle
    assert oracle is not None
    can = oracle.capabilities
    top = 2 if Capability.LOGPROBS in can else None
    texts: list[dict[str, Any]] = [{"prompt": prompt} for prompt in PROMPTS]
    chats = [{"messages": chat} for chat in CHATS if Capability.CHAT in can]
    with subject.fresh(engine=oracle, model=subject.oracle_model) as session:
        generated = [_complete(session, subject.max_new_tokens, top, prompt) for prompt in texts]
        answered = [_complete(session, subject.max_new_tokens, top, chat) for chat in chats]
        scoring, rolling = _score(session, PAIRS), _roll(session, TEXTS)
    truncation: list[ScoringCase] = []
    small = resize(oracle, SMALL_WINDOW)
    if small is not None:
        with subject.fresh(engine=small, model=subject.oracle_model) as session:
            truncation = _score(session, [(SENTENCE * 5, "The cat sleeps.")])
            rolling += _roll(session, [SENTENCE * 5])
    return ReferenceValues(scoring, truncation, generated, answered, rolling)


def _score(session: BaseInferenceSession, pairs: Sequence[tuple[str, str]]) -> list[ScoringCase]:
    outputs = session.loglikelihood([LoglikelihoodRequest(*pair) for pair in pairs])
    return [
        ScoringCase(
            *pair,
            output.token_logprobs or [],
            output.is_greedy,
            _context_ids(session, pair[0]),
            output.token_ids,
            max_model_len=session.info.max_model_len,
            truncated_tokens=output.truncated_tokens,
        )
        for pair, output in zip(pairs, outputs, strict=True)
    ]


def _context_ids(session: BaseInferenceSession, context: str) -> list[int] | None:
    codec = session.tokenizer
    return None if codec is None else encode_with_leading(codec, context.rstrip())


def _complete(
    session: BaseInferenceSession, length: int, top: int | None, prompt: dict[str, Any]
) -> GenerationCase:
    request = GenerationRequest(**prompt, max_new_tokens=length, logprobs=top)
    (output,) = session.generate([request])
    gaps = top2_gaps(output.top_logprobs or [])
    return GenerationCase(
        length, output.text, output.finish_reason, output.token_ids, gaps, **prompt
    )


def _roll(session: BaseInferenceSession, texts: Sequence[str]) -> list[RollingCase]:
    outputs = session.loglikelihood_rolling([RollingLoglikelihoodRequest(text) for text in texts])
    window = session.info.max_model_len
    return [
        RollingCase(text, output.token_logprobs or [], output.token_ids, window)
        for text, output in zip(texts, outputs, strict=True)
    ]


def top2_gaps(top_logprobs: Sequence[dict[int, float]]) -> list[float]:
    """The lead of the most likely token at each step."""
    leads = (sorted(row.values(), reverse=True)[:2] for row in top_logprobs)
    return [first - second for first, second in leads]
