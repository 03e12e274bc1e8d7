"""Completions: tokens or text of a runtime in, verbatim text and the contract's output out."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from evalution_core import EngineRuntimeError, GenerationOutput, GenerationRequest, TextDelta
from evalution_core.requests import FinishReason, TopLogprobs
from evalution_enginekit.tokenizer import Tokenizer
from evalution_enginekit.tokens import TokenEvent, TokenPrompt


class Completion:
    """Collects the tokens of one prompt and knows when it is finished.

    Stop strings are matched on the text with special tokens spelled out, since suites stop on
    `</s>`; the text that is returned has neither special tokens nor the stop string.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: TokenPrompt, stops: Sequence[str]):
        self._special = tokenizer.special_ids
        self._prompt = prompt
        self._detokenizer = Detokenizer(tokenizer, prompt.token_ids)
        self._matcher = StopMatcher(stops)
        self._pieces: list[tuple[str, bool]] = []
        self._offsets: list[int] = []
        self._starts: list[int] = []
        self._length = 0
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._top: TopLogprobs = []
        self._runtime: dict[str, Any] = {}
        self._generated = 0
        self._sent_text = 0
        self._sent_ids = 0
        self.finish: FinishReason | None = None

    def take(self, event: TokenEvent) -> bool:
        """Add a step's tokens; those after the end are ignored.

        Returns whether the runtime knows of the end too: it came from a stop id, from the limit or
        from the runtime itself, not from a stop string alone.
        """
        self._runtime.update(event.runtime or {})
        for index, token_id in enumerate(event.token_ids):
            if self.finish is not None:
                break
            self._generated += 1
            if token_id in self._prompt.stop_ids:
                self._end("stop")
                return True
            self._ids.append(token_id)
            if event.logprobs is not None:
                self._logprobs.append(event.logprobs[index])
            if event.top_logprobs is not None:
                self._top.append(event.top_logprobs[index])
            self._add_text(token_id)
            if self._generated >= self._prompt.max_new_tokens:
                self._end("length")
                return True
        if event.finish is not None:
            self._end(event.finish)
            return True
        return False

    def delta(self) -> TextDelta | None:
        """Text and ids that became final since the last call; None if there are none."""
        certain = self._matcher.certain if self.finish is None else self._cut
        text = self._visible(self._sent_text, certain)
        ids = self._certain_ids(certain)
        self._sent_text, self._sent_ids = certain, self._sent_ids + len(ids)
        return TextDelta(text, tuple(ids)) if text or ids else None

    def output(self, prompt: str, metadata: dict[str, Any], truncated: int) -> GenerationOutput:
        kept = self._kept_ids()
        known = self._prompt.logprobs is not None and len(self._logprobs) >= len(kept)
        listed = known and len(self._top) >= len(kept)
        return GenerationOutput(
            prompt,
            self._visible(0, self._cut),
            metadata,
            token_ids=kept,
            token_logprobs=self._logprobs[: len(kept)] if known else None,
            top_logprobs=self._top[: len(kept)] if listed else None,
            finish_reason=self.finish,
            prompt_tokens=len(self._prompt.token_ids),
            completion_tokens=self._generated,
            truncated_tokens=truncated,
            runtime=self._runtime or None,
        )

    @property
    def _cut(self) -> int:
        return self._length if self._matcher.cut is None else self._matcher.cut

    def _add_text(self, token_id: int) -> None:
        special = token_id in self._special
        if special:
            self._add_piece(self._detokenizer.flush(), False)
        self._starts.append(self._length)
        self._add_piece(self._detokenizer.push(token_id), special)
        if self._matcher.cut is not None:
            self.finish = "stop"

    def _add_piece(self, piece: str, special: bool) -> None:
        if piece:
            self._pieces.append((piece, special))
            self._offsets.append(self._length)
            self._length += len(piece)
            self._matcher.push(piece)

    def _end(self, reason: FinishReason) -> None:
        self._add_piece(self._detokenizer.flush(), False)
        self.finish = "stop" if self._matcher.cut is not None else reason

    def _kept_ids(self) -> list[int]:
        if self._matcher.cut is None:
            return list(self._ids)
        cut = self._matcher.cut
        return [i for i, start in zip(self._ids, self._starts, strict=True) if start < cut]

    def _certain_ids(self, certain: int) -> list[int]:
        if self.finish is not None:
            return self._kept_ids()[self._sent_ids :]
        settled = self._length
        if settled > certain:
            settled = self._starts[bisect_right(self._starts, certain) - 1]
        # Tokens that begin there are held back: a character or a stop string may be incomplete.
        return self._ids[self._sent_ids : bisect_left(self._starts, settled)]

    def _visible(self, begin: int, end: int) -> str:
        shown: list[str] = []
        for index in range(max(0, bisect_right(self._offsets, begin) - 1), len(self._pieces)):
            piece, special = self._pieces[index]
            offset = self._offsets[index]
            if offset >= end:
                break
            if not special:
                shown.append(piece[max(0, begin - offset) : end - offset])
        return "".join(shown)


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


def join_deltas(earlier: object, later: object) -> TextDelta:
    """Two unread deltas of a request as one."""
    assert isinstance(earlier, TextDelta)
    assert isinstance(later, TextDelta)
    return TextDelta(earlier.text + later.text, earlier.token_ids + later.token_ids)


class StopMatcher:
    """Finds the first stop string to be complete, however the text is cut into pieces.

    If several are complete with the same character, the one that began first counts. Positions are
    characters from the beginning of the text.
    """

    def __init__(self, stops: Sequence[str]):
        self._stops = tuple(stops)
        self._reach = max((len(stop) for stop in self._stops), default=1) - 1
        self._tail = ""
        self._length = 0
        self.cut: int | None = None
        """Index at which the stop string begins, once one is complete."""

    @property
    def certain(self) -> int:
        """Number of characters that are final: none of it can be the beginning of a stop string."""
        return self._length - self._held() if self.cut is None else self.cut

    def push(self, piece: str) -> bool:
        """Take the next piece; whether a stop string is complete now."""
        if self.cut is not None:
            return True
        begin = self._length - len(self._tail)
        text = self._tail + piece
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        self._length += len(piece)
        if found:
            _, at = min(found)
            self.cut = begin + at
            return True
        self._tail = text[-self._reach :] if self._reach else ""
        return False

    def _held(self) -> int:
        for size in range(len(self._tail), 0, -1):
            end = self._tail[-size:]
            if any(len(stop) > size and stop.startswith(end) for stop in self._stops):
                return size
        return 0


_CONTEXT = 6
_LONGEST_HOLD = 32
"""Tokens after which bytes that still end in an incomplete character are taken for broken ones."""


class Detokenizer:
    """Text of a continuation as it reads after its prompt, special tokens spelled out.

    A token is decoded together with those before it, since many vocabularies bind a space or a
    part of a character to the neighbour (the method of text-generation-inference and vLLM: two
    offsets, and bytes held back while they decode to U+FFFD).
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int]):
        self._decode = tokenizer.decode
        self._ids = list(prompt_ids[-_CONTEXT:])
        self._context = 0
        self._read = len(self._ids)
        self._context_text = self._text(0, self._read)

    def push(self, token_id: int) -> str:
        """Text that is complete with this token; empty while a character is incomplete."""
        self._ids.append(token_id)
        text = self._text(self._context, len(self._ids))
        held = len(self._ids) - self._read
        if text.endswith("\ufffd") and held <= _LONGEST_HOLD:
            return ""
        return self._advance(text)

    def flush(self) -> str:
        """Return the rest when no more tokens come; an incomplete character reads U+FFFD."""
        if self._read == len(self._ids):
            return ""
        return self._advance(self._text(self._context, len(self._ids)))

    def _advance(self, text: str) -> str:
        piece = text[len(self._context_text) :]
        self._context, self._read = self._read, len(self._ids)
        self._context_text = self._text(self._context, self._read)
        return piece

    def _text(self, begin: int, end: int) -> str:
        return self._decode(self._ids[begin:end], skip_special_tokens=False)


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
