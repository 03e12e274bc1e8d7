"""Correct answers: stored float64 values of `builtin:tiny`, or those of an oracle engine."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any, TypeVar, cast

import pytest

from evalution_conformance.probes import (
    CHAT_IN_SPACES,
    CHATS,
    ENCODING,
    PAIRS,
    PROMPTS,
    SENTENCE,
    TEXTS,
    make_long_text,
)
from evalution_conformance.subject import LONGEST_PROBE, Subject, resize
from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    Capability,
    GenerationRequest,
    LoglikelihoodRequest,
    RollingLoglikelihoodRequest,
    load_engine,
)
from evalution_core.builtins import builtin_path
from evalution_core.encoding import encode_with_leading
from evalution_core.requests import Message

C = TypeVar("C")

MODEL = "builtin:tiny"
SMALL_WINDOW = 64
"""The `max_model_len` for which there are values of cut contexts and of windows."""


@dataclass(frozen=True, slots=True)
class ScoringCase:
    """`token_logprobs`: of an oracle that gives no values of tokens, their sum alone."""

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
    rendered: str | None = None

    def request(self, **fields: Any) -> GenerationRequest:
        return GenerationRequest(
            self.prompt, self.messages, max_new_tokens=self.max_new_tokens, **fields
        )


@dataclass(frozen=True, slots=True)
class RollingCase:
    """`token_logprobs` as in `ScoringCase`."""

    text: str
    token_logprobs: list[float]
    token_ids: list[int] | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class EncodingCase:
    """Ids of a text alone, and the texts of the ids without and with special tokens."""

    text: str
    token_ids: list[int]
    decoded: str
    shown: str


@dataclass(frozen=True, slots=True)
class WindowCase:
    """As many ids as the window feeds, and their values after BOS, else EOS."""

    token_ids: list[int]
    token_logprobs: list[float]


@dataclass(frozen=True, slots=True)
class ReferenceValues:
    """Cases of a model; those of `truncation` hold for their own `max_model_len` alone.

    `full_prompt` are completions whose prompt leaves room for them alone.
    """

    scoring: list[ScoringCase]
    truncation: list[ScoringCase]
    generation: list[GenerationCase]
    full_prompt: list[GenerationCase]
    encoding: list[EncodingCase]
    chat: list[GenerationCase]
    rolling: list[RollingCase]


def require_window(subject: Subject) -> WindowCase:
    """Return as much of a known text as one window feeds; skips the check if there is none."""
    # No value depends on what follows it: a long text's first window has those of every shorter.
    known = {
        min(len(case.token_logprobs), case.max_model_len or 0): case
        for case in load_reference_values(subject).rolling
        if len(case.token_logprobs) == len(case.token_ids or ())
    }
    length = min(subject.window, max(known, default=0))
    if not length:
        pytest.skip("the oracle gives no token_ids and token_logprobs of a text")
    case = known[max(known)]
    return WindowCase((case.token_ids or [])[:length], case.token_logprobs[:length])


def require_cases(cases: Iterable[C], kind: str) -> list[C]:
    """Return the cases; skips the check if there are none."""
    found = list(cases)
    if not found:
        pytest.skip(f"there are no reference values of {kind} for this model and window")
    return found


def load_reference_values(subject: Subject) -> ReferenceValues:
    """Return the correct answers for the subject's model; skips the check if there are none."""
    if subject.oracle is not None:
        return _ask_oracle(subject)
    _require_builtin(subject)
    return _read_builtin()


@contextmanager
def open_reference(subject: Subject, capability: Capability) -> Generator[BaseInferenceSession]:
    """Build the oracle, or for `builtin:tiny` Reference in float64, for what isn't stored.

    Skips the check if there is neither, or if it lacks the capability.
    """
    oracle = subject.oracle
    if oracle is None:
        _require_builtin(subject)
        reference: Any = load_engine("evalution-reference/Reference")
        oracle = cast("BaseEngine", reference(dtype="float64"))
    if capability not in oracle.capabilities:
        pytest.skip(f"the oracle {type(oracle).__name__} doesn't declare {capability.value}")
    with subject.fresh(engine=oracle, model=subject.oracle_model) as session:
        yield session


def _require_builtin(subject: Subject) -> None:
    if subject.model.path != MODEL:
        pytest.skip(
            f"there are reference values for {MODEL} alone, and no `oracle` engine is given for "
            f"{subject.model.name}"
        )


@cache
def _read_builtin() -> ReferenceValues:
    stored = json.loads(builtin_path(MODEL, "reference_values").read_text("utf-8"))
    return ReferenceValues(
        [ScoringCase(**case) for case in stored["scoring"]],
        [ScoringCase(**case) for case in stored["truncation"]],
        [GenerationCase(**case) for case in stored["generation"]],
        [GenerationCase(**case) for case in stored["full_prompt"]],
        [EncodingCase(**case) for case in stored["encoding"]],
        [GenerationCase(**case) for case in stored["chat"]],
        [RollingCase(**case) for case in stored["rolling"]],
    )


@lru_cache(maxsize=1)
def _ask_oracle(subject: Subject) -> ReferenceValues:
    oracle = subject.oracle
    assert oracle is not None
    can = oracle.capabilities
    texts: list[dict[str, Any]] = [{"prompt": prompt} for prompt in PROMPTS]
    chats = [{"messages": chat} for chat in (*CHATS, CHAT_IN_SPACES) if Capability.CHAT in can]
    with subject.fresh(engine=oracle, model=subject.oracle_model) as session:
        values = ReferenceValues(
            scoring=_score(session, PAIRS),
            truncation=[],
            generation=[_complete(session, subject.max_new_tokens, prompt) for prompt in texts],
            full_prompt=[],
            encoding=_encode(session),
            chat=[_complete(session, subject.max_new_tokens, chat) for chat in chats],
            rolling=_roll(session, TEXTS),
        )
        own = session.info.max_model_len
    known = (subject.session.info.max_model_len, own, LONGEST_PROBE)
    window = min(size for size in known if size is not None)
    for size, ask in (SMALL_WINDOW, _add_cut_texts), (window, _add_full_window):
        resized = oracle if size == own else resize(oracle, size)
        if resized is not None:
            with subject.fresh(engine=resized, model=subject.oracle_model) as session:
                ask(values, session, subject.max_new_tokens)
    return values


def _add_cut_texts(values: ReferenceValues, session: BaseInferenceSession, _: int) -> None:
    values.truncation.extend(_score(session, [(SENTENCE * 5, "The cat sleeps.")]))
    values.rolling.extend(_roll(session, [SENTENCE * 5]))


def _add_full_window(values: ReferenceValues, session: BaseInferenceSession, length: int) -> None:
    codec, window = session.tokenizer, session.info.max_model_len
    if codec is not None and window is not None:
        prompt = make_long_text(codec, window - length, seed=1)
        case = _complete(session, length, {"prompt": prompt})
        values.full_prompt.append(replace(case, prompt_ids=encode_with_leading(codec, prompt)))
        text = make_long_text(codec, 2 * window + window // 5, seed=2)
        values.rolling.extend(_roll(session, [text]))


def _encode(session: BaseInferenceSession) -> list[EncodingCase]:
    codec = session.tokenizer
    if codec is None:
        return []
    texts = [*ENCODING]
    if codec.bos_id is not None:
        texts.append(codec.decode([codec.bos_id], skip_special_tokens=False) + "spelled")
    ids = [(text, codec.encode(text)) for text in texts]
    return [
        EncodingCase(
            text, found, codec.decode(found), codec.decode(found, skip_special_tokens=False)
        )
        for text, found in ids
    ]


def _score(session: BaseInferenceSession, pairs: Sequence[tuple[str, str]]) -> list[ScoringCase]:
    outputs = session.loglikelihood([LoglikelihoodRequest(*pair) for pair in pairs])
    return [
        ScoringCase(
            *pair,
            output.token_logprobs or [output.logprob],
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


def _complete(session: BaseInferenceSession, length: int, prompt: dict[str, Any]) -> GenerationCase:
    top = 2 if Capability.LOGPROBS in session.capabilities else None
    request = GenerationRequest(**prompt, max_new_tokens=length, logprobs=top)
    (output,) = session.generate([request])
    gaps = top2_gaps(output.top_logprobs or [])
    rendered = output.prompt if "messages" in prompt else None
    return GenerationCase(
        length,
        output.text,
        output.finish_reason,
        output.token_ids,
        gaps,
        rendered=rendered,
        **prompt,
    )


def _roll(session: BaseInferenceSession, texts: Sequence[str]) -> list[RollingCase]:
    outputs = session.loglikelihood_rolling([RollingLoglikelihoodRequest(text) for text in texts])
    window = session.info.max_model_len
    return [
        RollingCase(text, output.token_logprobs or [output.logprob], output.token_ids, window)
        for text, output in zip(texts, outputs, strict=True)
    ]


def top2_gaps(top_logprobs: Sequence[dict[int, float]]) -> list[float]:
    """The lead of the most likely token at each step."""
    leads = (sorted(row.values(), reverse=True)[:2] for row in top_logprobs)
    return [first - second for first, second in leads]
