"""Generation: the tokens of a runtime in, verbatim text and the contract's output out."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evalution_core import EngineRuntimeError, EvalutionError, GenerationOutput
from evalution_core.requests import FinishReason, RequestFailure, TextDelta, TopLogprobs
from evalution_enginekit.planning import check_logprobs
from evalution_enginekit.runtime_thread import (
    IDLE,
    RuntimeThread,
    end_steps,
    name_lost_requests,
    runtime_errors,
)
from evalution_enginekit.streams import ResultStream, StreamLimits
from evalution_enginekit.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt as ids, with all that decides its completion.

    A completion ends by itself at a token of `stop_ids` or after `max_new_tokens`. At a string of
    `stop` a runtime may end it, or the kit cancels the key. `top_k` is at most the vocabulary.
    """

    key: int
    token_ids: Sequence[int]
    max_new_tokens: int
    stop_ids: frozenset[int] = frozenset()
    do_sample: bool = False
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    num_beams: int = 1
    logprobs: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """Tokens that one runtime step gave one prompt.

    `logprobs` and `top_logprobs` run beside `token_ids` where the prompt asks for them. `finish`
    is needed only where the runtime ends for a reason of its own. `error` ends this prompt alone.
    """

    key: int
    token_ids: Sequence[int] = ()
    logprobs: Sequence[float] | None = None
    top_logprobs: Sequence[dict[int, float]] | None = None
    finish: FinishReason | None = None
    error: EvalutionError | None = None
    runtime: dict[str, Any] | None = None


class Completion:
    """Collect the tokens of one prompt until it is finished.

    Stop strings are matched on the text with special tokens spelled out, since suites stop on
    `</s>`; the text that is returned has neither special tokens nor the stop string.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: TokenPrompt):
        self._tokenizer, self._special, self._prompt = tokenizer, tokenizer.special_ids, prompt
        self._detokenizer = Detokenizer(tokenizer, prompt.token_ids)
        self._matcher = StopMatcher(prompt.stop)
        self._pieces: list[tuple[int, str, bool]] = []
        self._starts: list[int] = []
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._top: TopLogprobs = []
        self._runtime: dict[str, Any] = {}
        self._length = self._generated = self._sent_text = self._sent_ids = 0
        self._has_ended = False
        self.finish: FinishReason | None = None

    @property
    def is_cut(self) -> bool:
        """True if a stop string alone ended it, so that the runtime doesn't know of the end."""
        return self.finish is not None and not self._has_ended

    def take(self, event: TokenEvent) -> None:
        """Add a step's tokens; those after the end are ignored."""
        if self.finish is not None:
            return
        self._runtime.update(event.runtime or {})
        try:
            for index, token_id in enumerate(event.token_ids):
                if self.finish is not None:
                    break
                self._generated += 1
                if token_id in self._prompt.stop_ids:
                    self._end("stop")
                    return
                self._ids.append(token_id)
                if event.logprobs is not None:
                    self._logprobs.append(event.logprobs[index])
                if event.top_logprobs is not None:
                    self._top.append(event.top_logprobs[index])
                self._add_text(token_id)
                if self._generated >= self._prompt.max_new_tokens:
                    self._end("length")
                    return
        except IndexError as error:
            raise IndexError(self._find_fault(event, error)) from error
        if event.finish is not None:
            self._end(event.finish)

    def delta(self) -> TextDelta | None:
        """Text and ids that became final since the last call; None if there are none."""
        certain = self._matcher.certain if self.finish is None else self._cut
        text = self._join_visible(self._sent_text, certain)
        ids = self._find_certain_ids(certain)
        self._sent_text, self._sent_ids = certain, self._sent_ids + len(ids)
        return TextDelta(text, tuple(ids)) if text or ids else None

    def output(self, prompt: str, metadata: dict[str, Any], truncated: int) -> GenerationOutput:
        kept = self._find_kept_ids()
        known = self._prompt.logprobs is not None and len(self._logprobs) >= len(kept)
        listed = known and len(self._top) >= len(kept)
        return GenerationOutput(
            prompt,
            self._join_visible(0, self._cut),
            metadata,
            token_ids=kept,
            token_logprobs=check_logprobs(self._logprobs[: len(kept)]) if known else None,
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
        self._starts.append(self._length + self._detokenizer.held)
        self._add_piece(self._detokenizer.push(token_id), special)
        if self._matcher.cut is not None:
            self.finish = "stop"

    def _add_piece(self, piece: str, special: bool) -> None:
        if piece:
            self._pieces.append((self._length, piece, special))
            self._length += len(piece)
            self._matcher.push(piece)

    def _find_fault(self, event: TokenEvent, error: IndexError) -> str:
        ids = [*event.token_ids]
        for values, name in (event.logprobs, "logprobs"), (event.top_logprobs, "top_logprobs"):
            if values is not None and len(values) < len(ids):
                return f"{len(ids)} token_ids and {len(values)} {name} came in one event"
        return f"{error}; token_ids {ids}, a vocabulary of {self._tokenizer.vocabulary_size}"

    def _end(self, reason: FinishReason) -> None:
        self._add_piece(self._detokenizer.flush(), False)
        self._has_ended = True
        self.finish = "stop" if self._matcher.cut is not None else reason

    def _find_kept_ids(self) -> list[int]:
        if (cut := self._matcher.cut) is None:
            return list(self._ids)
        return [i for i, start in zip(self._ids, self._starts, strict=True) if start < cut]

    def _find_certain_ids(self, certain: int) -> list[int]:
        if self.finish is not None:
            return self._find_kept_ids()[self._sent_ids :]
        settled = self._length
        if settled > certain:
            settled = self._starts[bisect_right(self._starts, certain) - 1]
        # Tokens that begin there are held back: a character or a stop string may be incomplete.
        return self._ids[self._sent_ids : bisect_left(self._starts, settled)]

    def _join_visible(self, begin: int, end: int) -> str:
        first = max(0, bisect_right(self._pieces, begin, key=lambda piece: piece[0]) - 1)
        return "".join(
            piece[max(0, begin - offset) : end - offset]
            for offset, piece, special in self._pieces[first:]
            if offset < end and not special
        )


class StopMatcher:
    """Finds the first stop string to be complete, however the text is cut into pieces.

    If several are complete with the same character, the one that began first counts. Positions are
    characters from the beginning of the text.
    """

    def __init__(self, stops: Sequence[str]):
        self._stops = tuple(stops)
        self._reach = max((len(stop) for stop in self._stops), default=1) - 1
        self._tail, self._length = "", 0
        self.cut: int | None = None
        """Index at which the stop string begins, once one is complete."""

    @property
    def certain(self) -> int:
        """Number of characters that are final: none of it can be the beginning of a stop string."""
        return self._length - self._count_held() if self.cut is None else self.cut

    def push(self, piece: str) -> bool:
        """Take the next piece; return whether a stop string is complete now."""
        if self.cut is not None:
            return True
        text = self._tail + piece
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        self._length += len(piece)
        self._tail = text[-self._reach :] if self._reach else ""
        if found:
            self.cut = self._length - len(text) + min(found)[1]
        return self.cut is not None

    def _count_held(self) -> int:
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
        self._context, self._read = 0, len(self._ids)
        self._context_text = self._decode_part(0, self._read)
        self.held = 0  # complete characters that wait for the incomplete one behind them

    def push(self, token_id: int) -> str:
        """Text that is complete with this token; empty while a character is incomplete."""
        self._ids.append(token_id)
        text = self._decode_part(self._context, len(self._ids))
        is_held = text.endswith("\ufffd") and len(self._ids) - self._read <= _LONGEST_HOLD
        self.held = is_held * max(0, len(text.rstrip("\ufffd")) - len(self._context_text))
        return "" if is_held else self._advance(text)

    def flush(self) -> str:
        """Return the rest when no more tokens come; an incomplete character reads U+FFFD."""
        text = self._decode_part(self._context, len(self._ids))
        return self._advance(text) if self._read < len(self._ids) else ""

    def _advance(self, text: str) -> str:
        old, end = self._context_text, len(self._ids)  # broken bytes may have taken it along
        piece = text[len(old) :] if text.startswith(old) else self._decode_part(self._read, end)
        self._context, self._read, self.held = self._read, end, 0
        self._context_text = self._decode_part(self._context, self._read)
        return piece

    def _decode_part(self, begin: int, end: int) -> str:
        return self._decode(self._ids[begin:end], skip_special_tokens=False)


_BATCH_PATIENCE_S = 0.05
"""Seconds that a batch of fixed size may fill after the last request came."""
_LATE_STEPS = 32
"""Steps in which a runtime may still give tokens of a prompt that is over."""
_REMEMBERED = 1024


@dataclass(frozen=True, slots=True)
class GenerationJob:
    """A prepared request; its prompt gets a key of its own when it is admitted."""

    prompt: TokenPrompt
    prompt_text: str
    metadata: dict[str, Any]
    truncated_tokens: int = 0
    is_live: bool = False
    """True if its text is wanted as it grows."""


GenerationStream = ResultStream[Any, GenerationJob, GenerationOutput | TextDelta]
Generate = Callable[["PromptQueue"], Iterator[Sequence[TokenEvent]]]


@dataclass(frozen=True, slots=True)
class _Running:
    stream: GenerationStream
    key: Hashable
    job: GenerationJob
    completion: Completion


class PromptQueue:
    """Prompts for `_generate_tokens`. Ask for `cancelled` first, then `take` what fits."""

    def __init__(self, loop: GenerationLoop, thread: RuntimeThread):
        self._loop, self._thread = loop, thread

    def on_change(self, notify: Callable[[], None]) -> None:
        """Call `notify`, from any thread, when there may be prompts to take or keys to cancel.

        For an engine that waits for its runtime's events: `loop.call_soon_threadsafe`, say. It has
        to return at once, and holds until `_generate_tokens` returns.
        """
        self._thread.on_wake = notify

    def take(self, limit: int) -> list[TokenPrompt]:
        """Up to `limit` more prompts to run; none where callers want no more for now."""
        return self._loop.admit(limit)

    def cancelled(self) -> list[int]:
        """Keys to drop: aborted, or ended by a stop string. The runtime must let go of them."""
        return self._loop.take_cancelled()


class GenerationLoop:
    """Drive the engine's `_generate_tokens` one yield at a time, for all streams at once."""

    def __init__(
        self, thread: RuntimeThread, tokenizer: Tokenizer, generate: Generate, *, continuous: bool
    ):
        self._thread, self._tokenizer, self._generate = thread, tokenizer, generate
        self._patience = 0.0 if continuous else _BATCH_PATIENCE_S
        self._asked, self._last_key = False, -1
        self._streams: list[GenerationStream] = []
        self._running: dict[int, _Running] = {}
        self._late: dict[int, int] = {}  # what is over, with the steps that it got tokens in since
        self._steps: Iterator[Sequence[TokenEvent]] | None = None

    def open(self, limits: StreamLimits) -> GenerationStream:
        stream: GenerationStream = ResultStream(self._thread, limits)
        with self._thread.lock:
            self._thread.ensure_open()
            self._streams.append(stream)
        return stream

    @property
    def running(self) -> int:
        return len(self._running)

    def step(self) -> float:
        with self._thread.lock:
            self._streams = [s for s in self._streams if not s.ended or s.running]
            rests = (stream.rest(self._patience) for stream in self._streams)
            rest = 0.0 if self._running else min(rests, default=IDLE)
        if rest > 0:
            return rest
        try:
            with runtime_errors("generation"):
                if self._steps is None:
                    self._asked, self._late = False, {}
                    self._steps = iter(self._generate(PromptQueue(self, self._thread)))
                events = next(self._steps, None)
                with self._thread.lock:
                    if isinstance(events, TokenEvent):
                        raise EngineRuntimeError("yield a list of TokenEvent a step, not one event")
                    self._count_late(events or ())
                    for event in events or ():
                        self._apply(event)
        except EvalutionError as error:
            self._end_steps()
            self._fail(error)
            return 0
        if events is None or not self._asked:
            self._end_steps()
        if not self._asked:
            self._fail(EngineRuntimeError("the engine asked for none of the waiting prompts"))
        elif events is None:
            self._finish_returned()
        return 0

    def shut_down(self, error: EvalutionError) -> None:
        self._end_steps()
        with self._thread.lock:
            for key in list(self._running):
                self._release(key)
            for stream in self._streams:
                stream.fail(error)

    def admit(self, limit: int) -> list[TokenPrompt]:
        """Start up to `limit` jobs, one of each stream in turn."""
        admitted: list[TokenPrompt] = []
        with self._thread.lock:
            self._asked = self._asked or limit > 0
            ready = [s for s in self._streams if s.rest(self._patience) == 0]
            while ready and len(admitted) < limit:
                admitted += [self._start(stream) for stream in ready[: limit - len(admitted)]]
                ready = [stream for stream in ready if stream.admissible() > 0]
        return admitted

    def take_cancelled(self) -> list[int]:
        """Running keys that are finished or that nobody wants now; they count as let go."""
        with self._thread.lock:
            dropped = [key for key in self._running if not self._is_wanted(key)]
            for key in dropped:
                self._late.setdefault(key, 0)
                self._release(key)
            while len(self._late) > _REMEMBERED:
                del self._late[next(iter(self._late))]
            return dropped

    def _end_steps(self) -> None:
        steps, self._steps = self._steps, None
        end_steps(steps, "generation")
        self._thread.on_wake = None

    def _start(self, stream: GenerationStream) -> TokenPrompt:
        # Whoever was served goes last: with one slot free at a time, the first would have them all.
        self._streams.remove(stream)
        self._streams.append(stream)
        number = self._last_key = self._last_key + 1
        key, job = stream.admit(number)
        prompt = replace(job.prompt, key=number)
        self._running[number] = _Running(stream, key, job, Completion(self._tokenizer, prompt))
        return prompt

    def _apply(self, event: TokenEvent) -> None:
        if not (hasattr(event.key, "__index__") and 0 <= event.key <= self._last_key):
            raise EngineRuntimeError(f"the engine generated for key {event.key!r}, no prompt's")
        running = self._running.get(event.key)
        if running is None or event.key in self._late:
            return
        if event.error is not None:
            running.stream.deliver(event.key, RequestFailure(event.error, running.job.metadata))
            self._release(event.key)
            return
        completion, job = running.completion, running.job
        try:
            with runtime_errors("reading the generated tokens"):
                completion.take(event)
                if job.is_live and (delta := completion.delta()) is not None:
                    running.stream.deliver_part(event.key, delta)
                if completion.finish is None:
                    return
                output = completion.output(job.prompt_text, job.metadata, job.truncated_tokens)
        except EvalutionError as error:
            output = RequestFailure(error, job.metadata)
        running.stream.deliver(event.key, output)
        if completion.is_cut or completion.finish is None:
            self._late[event.key] = 0
        else:
            self._release(event.key)

    def _count_late(self, events: Sequence[TokenEvent]) -> None:
        """Raise over an engine that works on for nobody; a fixed batch may run to its end."""
        if not self._late or (self._patience > 0 and any(map(self._is_wanted, self._running))):
            return
        for key in self._late.keys() & {event.key for event in events if event.token_ids}:
            self._late[key] += 1
        if max(self._late.values()) > _LATE_STEPS:
            raise EngineRuntimeError(
                f"the engine generates on {_LATE_STEPS} steps after a stop string or cancellation; "
                "drop the keys that feed.cancelled() names before each step"
            )

    def _finish_returned(self) -> None:
        """The engine returned: it is rid of everything, also of what it never finished."""
        with self._thread.lock:
            for key, running in list(self._running.items()):
                if key not in self._late:
                    text = "the engine ended generation before max_new_tokens or one of stop_ids"
                    error = EngineRuntimeError(text, in_flight=[running.key])
                    running.stream.deliver(key, RequestFailure(error, running.job.metadata))
                self._release(key)

    def _fail(self, error: EvalutionError) -> None:
        """End each stream that lost requests, and all that wait if nothing was running."""
        with self._thread.lock:
            lost: dict[GenerationStream, list[Hashable]] = {}
            for key, running in list(self._running.items()):
                if self._is_wanted(key):
                    lost.setdefault(running.stream, []).append(running.key)
                self._release(key)
            for stream in self._streams:
                keys = lost.get(stream, [])
                if keys or (not lost and stream.waiting):
                    stream.fail(name_lost_requests(error, keys))

    def _is_wanted(self, key: int) -> bool:
        return key not in self._late and self._running[key].stream.wants(key)

    def _release(self, key: int) -> None:
        self._running.pop(key).stream.release(key)
