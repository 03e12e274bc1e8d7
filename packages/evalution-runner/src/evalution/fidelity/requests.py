"""Rows of suites as windows of token ids that every side is fed alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from evalution.parity.check import RequestEncoder
from evalution.suites.choice_suite import ChoiceSample
from evalution.suites.suite import AnySuite, Sample
from evalution_core import (
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodRequest,
    RollingLoglikelihoodRequest,
    TextCodec,
    UnsupportedRequestError,
)
from evalution_core.encoding import (
    TokenSpan,
    conditioning_id,
    fit_pair,
    rolling_windows,
    strip_leading,
)
from evalution_core.kinds import RequestKind
from evalution_core.requests import Request

Complete = Callable[[Sequence[GenerationRequest]], Iterator[Sequence[int] | None]]
"""Greedy completions of the reference, in the order of their requests; None of one that failed."""
_PROMPTS_AT_ONCE = 64
_FREE_PROMPTS = 32
_PROMPT_TOKENS = 64
_FREE_STEPS = 32
"""Tokens at most of a completion that is compared from its first step on."""


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens that are fed, and the first of those whose rows are compared.

    `request` is the position of the request in its row: the number of the choice.
    """

    input_ids: Sequence[int]
    start: int
    request: int = 0

    @property
    def scored_ids(self) -> Sequence[int]:
        return self.input_ids[self.start :]


@dataclass(slots=True)
class Document:
    """A row of a suite; `right` has the right choices of a question.

    `prompt` is the beginning of a completion that every side writes on by itself. Positions of a
    row resemble each other, and so do those of rows of a `group`.
    """

    number: int
    group: str | None = None
    windows: list[Window] = field(default_factory=list[Window])
    right: frozenset[int] = frozenset()
    prompt: Sequence[int] = ()

    @property
    def cluster(self) -> int | str:
        """Name of what all intervals are clustered by, within the suite."""
        return self.number if self.group is None else self.group


@dataclass(frozen=True, slots=True)
class PreparedSuite:
    """A suite's documents, under the name that it has in the result.

    `failed` generations have no window, as the reference failed to complete them.
    """

    name: str
    kind: Literal["generation", "loglikelihood", "rolling"]
    documents: Sequence[Document]
    failed: int = 0

    @property
    def windows(self) -> list[Window]:
        return [window for document in self.documents for window in document.windows]


def prepare_suite(
    suite: AnySuite, name: str, codec: TextCodec, window: int, limit: int | None, complete: Complete
) -> PreparedSuite:
    """Encode a suite's rows by `codec`, each request cut so that `window` tokens are fed at most.

    A generation is taken with the completion that `complete` gives, whose tokens are compared. The
    only text of a suite is divided into its windows, so that there are several to cluster by.

    Raises:
        ConfigurationError: a row is wrong.
        UnsupportedRequestError: a request can't be made ids here, since it has messages.
    """
    preparation = _Preparation(name, codec, window, complete)
    documents = list(preparation.read(suite.samples(limit)))
    is_text = suite.request_kind is RequestKind.ROLLING
    if is_text and len(documents) == 1 and len(windows := documents[0].windows) > 1:
        documents = [
            Document(at, windows=[part], prompt=_begin(part)) for at, part in enumerate(windows)
        ]
    return PreparedSuite(name, suite.request_kind.value, documents, preparation.failed)


class _Preparation:
    def __init__(self, name: str, codec: TextCodec, window: int, complete: Complete):
        self._name = name
        self._codec = codec
        self._encoder = RequestEncoder(codec)
        self._window = window
        self._complete = complete
        self.failed = 0

    def read(self, samples: Iterable[Sample]) -> Iterator[Document]:
        waiting: list[tuple[Document, list[GenerationRequest]]] = []
        for sample in samples:
            document = Document(sample.index, sample.group)
            if isinstance(sample, ChoiceSample):
                document.right = frozenset(sample.right or [sample.gold])
            prompts: list[GenerationRequest] = []
            for position, request in enumerate(sample.requests):
                encoded = self._encode(request)
                if isinstance(encoded, GenerationRequest):
                    prompts.append(self._cut(encoded))
                else:
                    spans = self._split(encoded)
                    document.windows += [Window(s.token_ids, s.start, position) for s in spans]
            waiting.append((document, prompts))
            if len(waiting) == _PROMPTS_AT_ONCE:
                yield from self._finish(waiting)
                waiting = []
        yield from self._finish(waiting)

    def _finish(
        self, waiting: Sequence[tuple[Document, list[GenerationRequest]]]
    ) -> Iterator[Document]:
        """Add the windows of generations, which need completions first."""
        completions = self._complete([prompt for _, prompts in waiting for prompt in prompts])
        for document, prompts in waiting:
            for position, prompt in enumerate(prompts):
                ids = list(prompt.input_ids or ())
                completion = next(completions)
                self.failed += completion is None
                if completion:
                    document.windows.append(Window([*ids, *completion], len(ids), position))
            if document.windows:
                document.prompt = _begin(document.windows[0])
                yield document

    def _encode(self, request: Request) -> Request:
        match request:
            case LoglikelihoodRequest(context_input_ids=before, continuation_input_ids=after):
                has_ids = before is not None and after is not None
            case GenerationRequest(input_ids=ids) | RollingLoglikelihoodRequest(input_ids=ids):
                has_ids = ids is not None
        encoded = request if has_ids else self._encoder.encode(request)
        if encoded is None:
            raise UnsupportedRequestError(
                f"suite {self._name!r} asks in messages, or for nothing that can be scored, which "
                "an engine encodes by itself; fidelity needs the same ids on each side: take a "
                "suite without chat"
            )
        return encoded

    def _split(self, request: Request) -> list[TokenSpan]:
        if isinstance(request, LoglikelihoodRequest):
            before = list(request.context_input_ids or ())
            after = list(request.continuation_input_ids or ())
            fitted = fit_pair(before, after, max_model_len=self._window, truncation="left")
            return [fitted.span]
        assert isinstance(request, RollingLoglikelihoodRequest)
        ids = strip_leading(self._codec, list(request.input_ids or ()))
        return rolling_windows(ids, conditioning_id(self._codec), self._window)

    def _cut(self, request: GenerationRequest) -> GenerationRequest:
        room = self._window - request.max_new_tokens
        if room < 1:
            raise InvalidRequestError(
                f"suite {self._name!r}: max_new_tokens={request.max_new_tokens} leaves no room for "
                f"a prompt in a window of {self._window} tokens; set a larger --window"
            )
        ids = list(request.input_ids or ())[-room:]
        return GenerationRequest(
            input_ids=ids, max_new_tokens=request.max_new_tokens, stop=request.stop
        )


def _begin(window: Window) -> Sequence[int]:
    """Return the prompt of a free completion: what stands before the scored tokens, or a part."""
    length = window.start if window.start > 1 else min(_PROMPT_TOKENS, len(window.input_ids) // 2)
    return window.input_ids[: max(length, 1)]


def list_prompts(suite: PreparedSuite, window: int) -> list[Sequence[int]]:
    """Return the prompts of the first documents, cut so that a completion fits behind them."""
    room = window - count_free_steps(window)
    return [document.prompt[-room:] for document in suite.documents[:_FREE_PROMPTS]]


def count_free_steps(window: int) -> int:
    """Return the tokens of a free completion, which leave room for one of its prompt."""
    return min(_FREE_STEPS, window - 1)
