"""Completions of runtimes that are asked for whole requests: their chunks, put together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from evalution_core import EngineRuntimeError, GenerationOutput, GenerationRequest, TextDelta
from evalution_core.requests import FinishReason, TopLogprobs
from evalution_enginekit.generation import Completion, StopMatcher, TokenEvent, TokenPrompt
from evalution_enginekit.planning import check_logprobs
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
        self._completion: TextCompletion | Completion | None = None
        self._facts = CompletionChunk()

    @property
    def is_cut(self) -> bool:
        """True if a stop string ended it: what the runtime still generates isn't wanted."""
        return self._completion is not None and self._completion.is_cut

    def take(self, piece: CompletionChunk) -> TextDelta | None:
        """Add a chunk; return the text and ids that became final with it.

        Raises:
            EngineRuntimeError: a chunk without text, in a session that has no tokenizer.
        """
        known = self._facts
        self._facts = CompletionChunk(
            prompt=piece.prompt if known.prompt is None else known.prompt,
            prompt_tokens=_choose_newer(piece.prompt_tokens, known.prompt_tokens),
            completion_tokens=_choose_newer(piece.completion_tokens, known.completion_tokens),
            truncated_tokens=_choose_newer(piece.truncated_tokens, known.truncated_tokens),
            runtime={**(known.runtime or {}), **(piece.runtime or {})} or None,
        )
        if self._completion is None:
            if piece.text is None and piece.token_ids is None and piece.finish is None:
                return None
            self._completion = self._begin(piece)
        completion = self._completion
        if isinstance(completion, TextCompletion):
            completion.take(piece)
        else:
            ids = piece.token_ids or ()
            completion.take(TokenEvent(0, ids, piece.logprobs, piece.top_logprobs, piece.finish))
        return completion.delta()

    def output(self) -> GenerationOutput:
        """Return the whole completion.

        Raises:
            EngineRuntimeError: no chunk had `finish`: what came must not pass for the answer.
        """
        completion = self._completion
        if completion is None or completion.finish is None:
            raise EngineRuntimeError("the completion broke off before it was finished")
        facts, prompt = self._facts, self._prompt
        truncated, fed = prompt.truncated_tokens, prompt.token_ids
        text = facts.prompt if prompt.text is None else prompt.text
        output = completion.output(
            self._spell_messages() if text is None else text, prompt.request.metadata, 0
        )
        counted = output.completion_tokens
        if not completion.is_cut and facts.completion_tokens is not None:
            counted = facts.completion_tokens
        return replace(
            output,
            prompt_tokens=_choose_newer(len(fed) if fed is not None else None, facts.prompt_tokens),
            completion_tokens=counted,
            truncated_tokens=facts.truncated_tokens if truncated is None else truncated,
            runtime=facts.runtime,
        )

    def _begin(self, piece: CompletionChunk) -> TextCompletion | Completion:
        prompt = self._prompt
        if piece.text is not None or piece.token_ids is None:
            return TextCompletion(prompt.request)
        if self._tokenizer is None:
            raise EngineRuntimeError("token ids came without text, and there is no tokenizer")
        asked = TokenPrompt(
            0,
            prompt.token_ids or (),
            prompt.request.max_new_tokens,
            prompt.stop_ids,
            logprobs=prompt.request.logprobs,
            stop=tuple(prompt.request.stop),
        )
        return Completion(self._tokenizer, asked)

    def _spell_messages(self) -> str:
        """Return the messages as JSON, for a runtime that rendered them by itself."""
        messages = [dict(message) for message in self._prompt.request.messages or ()]
        return json.dumps(messages, ensure_ascii=False, default=str) if messages else ""


class TextCompletion:
    """A completion that comes as text, cut at the earliest stop string."""

    def __init__(self, request: GenerationRequest):
        self._wants_logprobs = request.logprobs is not None
        self._matcher = StopMatcher(request.stop)
        self._text = ""
        self._sent_text = 0
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
        text = self._text[self._sent_text : certain]
        self._sent_text = certain
        ids: list[int] = []
        while self._sent_chunks < len(self._pieces) and self._is_settled(self._sent_chunks):
            ids += self._pieces[self._sent_chunks][1].token_ids or ()
            self._sent_chunks += 1
        return TextDelta(text, tuple(ids)) if text or ids else None

    def output(self, prompt: str, metadata: dict[str, Any], truncated: int) -> GenerationOutput:
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
        wanted = self._wants_logprobs and ids is not None
        return GenerationOutput(
            prompt,
            self._text[:end],
            metadata,
            token_ids=ids,
            token_logprobs=(
                check_logprobs(logprobs) if wanted and len(logprobs) == len(ids or ()) else None
            ),
            top_logprobs=top if wanted and len(top) == len(ids or ()) else None,
            finish_reason=self.finish,
            truncated_tokens=truncated,
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


def _choose_newer(new: Any, known: Any) -> Any:
    return known if new is None else new
