"""One completion in the making: tokens in, verbatim text and the contract's output out."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evalution_core import FinishReason, GenerationOutput, GenerationRequest, TextDelta, TopLogprobs
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
        self._told_text = 0
        self._told_ids = 0
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
        text = self._visible(self._told_text, certain)
        ids = self._certain_ids(certain)
        self._told_text, self._told_ids = certain, self._told_ids + len(ids)
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
            return self._kept_ids()[self._told_ids :]
        settled = self._length
        if settled > certain:
            settled = self._starts[bisect_right(self._starts, certain) - 1]
        # Tokens that begin there are held back: a character or a stop string may be incomplete.
        return self._ids[self._told_ids : bisect_left(self._starts, settled)]

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
class CompletionPiece:
    """The next part of a completion; one piece may be the whole of it.

    With `text`, that is the completion's text, and `token_ids` are told only where they are the
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


def joined(earlier: object, later: object) -> TextDelta:
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
        """Where the stop string begins, once one is complete."""

    @property
    def certain(self) -> int:
        """How much of the text is final: none of it can be the beginning of a stop string."""
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
        """What is left when no more tokens come; an incomplete character reads U+FFFD."""
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
