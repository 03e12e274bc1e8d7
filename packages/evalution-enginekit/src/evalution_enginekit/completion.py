"""Completions of runtimes that are asked for whole requests: their chunks, put together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from evalution_core import EngineRuntimeError, GenerationOutput, GenerationRequest, TextDelta
from evalution_core.requests import FinishReason, TopLogprobs
from evalution_enginekit.generation import Completion, StopMatcher, TokenEvent, TokenPrompt
from evalution_enginekit.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class RequestPrompt:
    """A validated request, with its prompt as far as it is the kit's to make.

    `token_ids` are what to feed, where they were given or the session encodes; `text` is what is
    completed, None where the runtime renders `request.messages` itself. `stop_ids` are the
    tokenizer's end-of-sequence ids, empty with `ignore_eos`. `is_live`: pieces are wanted as they
    come, not only at the end.
    """

    request: GenerationRequest
    text: str | None = None
    token_ids: Sequence[int] | None = None
    truncated_tokens: int | None = None
    stop_ids: frozenset[int] = frozenset()
    is_live: bool = False


@dataclass(frozen=True, slots=True)
class CompletionChunk:
    """The next part of a completion; one piece may be the whole of it.

    With `text`, that is the completion's text, and `token_ids` are given only where they are the
    contract's: neither EOS nor a stop string's own. Without, the session's tokenizer reads the
    text from `token_ids`, which then are all that were generated. The last piece has `finish`.
    The counts, `prompt` (what was completed, as text) and `runtime` may come with any piece.
    """

    text: str | None = None
    token_ids: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None
    top_logprobs: Sequence[dict[int, float]] | None = None
    finish: FinishReason | None = None
    prompt: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    truncated_tokens: int | None = None
    runtime: dict[str, Any] | None = None


class OutputAssembler:
    """Builds one completion of chunks; the first one decides whether text or ids are read."""

    def __init__(self, prompt: RequestPrompt, tokenizer: Tokenizer | None):
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._made: TextCompletion | _IdCompletion | None = None
        self._facts = CompletionChunk()

    @property
    def is_cut(self) -> bool:
        """True if a stop string ended it: what the runtime still generates isn't wanted."""
        return self._made is not None and self._made.is_cut

    def take(self, piece: CompletionChunk) -> TextDelta | None:
        """Add a piece; the text and ids that became final with it.

        Raises:
            EngineRuntimeError: a piece without text, in a session that has no tokenizer.
        """
        known = self._facts
        self._facts = CompletionChunk(
            prompt=piece.prompt if known.prompt is None else known.prompt,
            prompt_tokens=_choose_newer(piece.prompt_tokens, known.prompt_tokens),
            completion_tokens=_choose_newer(piece.completion_tokens, known.completion_tokens),
            truncated_tokens=_choose_newer(piece.truncated_tokens, known.truncated_tokens),
            runtime={**(known.runtime or {}), **(piece.runtime or {})} or None,
        )
        if self._made is None:
            if piece.text is None and piece.token_ids is None and piece.finish is None:
                return None
            self._made = self._begin(piece)
        self._made.take(piece)
        return self._made.delta()

    def output(self) -> GenerationOutput:
        """The whole completion.

        Raises:
            EngineRuntimeError: no piece had `finish`: what came must not pass for the answer.
        """
        made = self._made
        if made is None or made.finish is None:
            raise EngineRuntimeError("the completion broke off before it was finished")
        facts, prompt = self._facts, self._prompt
        truncated = prompt.truncated_tokens
        text = facts.prompt if prompt.text is None else prompt.text
        output = made.output(self._spelled() if text is None else text, prompt)
        fed = prompt.token_ids
        return replace(
            output,
            prompt_tokens=_choose_newer(len(fed) if fed is not None else None, facts.prompt_tokens),
            completion_tokens=output.completion_tokens if made.is_cut else facts.completion_tokens,
            truncated_tokens=facts.truncated_tokens if truncated is None else truncated,
            runtime=facts.runtime,
        )

    def _begin(self, piece: CompletionChunk) -> TextCompletion | _IdCompletion:
        if piece.text is not None or piece.token_ids is None:
            return TextCompletion(self._prompt.request.stop)
        if self._tokenizer is None:
            raise EngineRuntimeError("token ids came without text, and there is no tokenizer")
        return _IdCompletion(self._prompt, self._tokenizer)

    def _spelled(self) -> str:
        """Return the messages as JSON, for a runtime that rendered them by itself."""
        messages = [dict(message) for message in self._prompt.request.messages or ()]
        return json.dumps(messages, ensure_ascii=False, default=str) if messages else ""


class TextCompletion:
    """A completion that comes as text, cut at the earliest stop string."""

    def __init__(self, stops: Sequence[str]):
        self._matcher = StopMatcher(stops)
        self._text = ""
        self._told = 0
        self._pieces: list[tuple[int, CompletionChunk]] = []
        self._sent_chunks = 0
        self.finish: FinishReason | None = None

    @property
    def is_cut(self) -> bool:
        return self._matcher.cut is not None

    def take(self, piece: CompletionChunk) -> None:
        if self.finish is not None:
            return
        self._pieces.append((len(self._text), piece))
        self._text += piece.text or ""
        self._matcher.push(piece.text or "")
        self.finish = "stop" if self.is_cut else piece.finish

    def delta(self) -> TextDelta | None:
        certain = self._certain
        text = self._text[self._told : certain]
        self._told = certain
        ids: list[int] = []
        while self._sent_chunks < len(self._pieces) and self._is_settled(self._sent_chunks):
            ids += self._pieces[self._sent_chunks][1].token_ids or ()
            self._sent_chunks += 1
        return TextDelta(text, tuple(ids)) if text or ids else None

    def output(self, text: str, prompt: RequestPrompt) -> GenerationOutput:
        end = self._certain
        kept = [piece for start, piece in self._pieces if not self.is_cut or start < end]
        # Ids of a chunk that the stop cuts through can't be assigned: none are better than wrong.
        known = all(p.token_ids is not None for p in kept if p.text) and (
            not self.is_cut or all(len(p.token_ids or ()) <= 1 for p in kept)
        )
        ids = [i for piece in kept for i in piece.token_ids or ()] if known else None
        if ids is not None and not any(piece.token_ids is not None for piece in kept):
            ids = None
        logprobs: list[float] | None = [v for piece in kept for v in piece.logprobs or ()]
        top: TopLogprobs | None = [row for piece in kept for row in piece.top_logprobs or ()]
        wanted = prompt.request.logprobs is not None and ids is not None
        return GenerationOutput(
            text,
            self._text[:end],
            prompt.request.metadata,
            token_ids=ids,
            token_logprobs=logprobs if wanted and len(logprobs) == len(ids or ()) else None,
            top_logprobs=top if wanted and len(top) == len(ids or ()) else None,
            finish_reason=self.finish,
        )

    @property
    def _certain(self) -> int:
        if self.finish is not None and not self.is_cut:
            return len(self._text)
        return self._matcher.certain

    def _is_settled(self, index: int) -> bool:
        start, piece = self._pieces[index]
        if self.is_cut:
            return start < self._certain
        return start + len(piece.text or "") <= self._certain


class _IdCompletion:
    """A completion that comes as token ids, read by the session's tokenizer."""

    def __init__(self, prompt: RequestPrompt, tokenizer: Tokenizer):
        request = prompt.request
        ids = list(prompt.token_ids or ())
        limit, stops = request.max_new_tokens, tuple(request.stop)
        asked = TokenPrompt(0, ids, limit, prompt.stop_ids, logprobs=request.logprobs)
        self._completion = Completion(tokenizer, asked, stops)
        self._ended_by_itself = False

    @property
    def finish(self) -> FinishReason | None:
        return self._completion.finish

    @property
    def is_cut(self) -> bool:
        return self.finish is not None and not self._ended_by_itself

    def take(self, piece: CompletionChunk) -> None:
        if self.finish is not None:
            return
        self._ended_by_itself = self._completion.take(
            TokenEvent(0, piece.token_ids or (), piece.logprobs, piece.top_logprobs, piece.finish)
        )

    def delta(self) -> TextDelta | None:
        return self._completion.delta()

    def output(self, text: str, prompt: RequestPrompt) -> GenerationOutput:
        return self._completion.output(text, prompt.request.metadata, 0)


def _choose_newer(new: Any, known: Any) -> Any:
    return known if new is None else new
