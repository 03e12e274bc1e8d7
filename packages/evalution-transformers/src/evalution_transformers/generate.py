"""Generation: choosing a prompt's next token, and fixed batches by the model's own `generate`."""

# torch leaves part of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import secrets
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from evalution_core import EngineRuntimeError
from evalution_core.redaction import redact_text
from evalution_enginekit import PromptQueue, TokenEvent, TokenPrompt, runtime_errors
from evalution_enginekit.planning import check_logprobs
from evalution_enginekit.sampling import next_token
from evalution_transformers.linear import use_fast_linear
from evalution_transformers.upstream import CausalModel

_SEED_BITS = 63
_PAD = 0
"""Stands to the left of shorter prompts, where nothing looks at it."""

T = TypeVar("T")
Events = Sequence[TokenEvent]
Report = Callable[[Events], None]
Cancelled = Callable[[], Sequence[int]]
OutOfMemory = type[BaseException] | tuple[type[BaseException], ...]
"""The exceptions after which less is tried at once."""


class RandomState:
    """Random numbers of its own from torch's global state, which a beam search draws from.

    Inside `exchange` they are the global ones, and in an `exchange` within it the caller's again.
    """

    def __init__(self, seed: int | None):
        found = _read_global_states()
        asked = secrets.randbits(_SEED_BITS) if seed is None else seed % (1 << _SEED_BITS)
        torch.manual_seed(asked)
        self._other = _read_global_states()
        _set_global_states(found)

    @contextmanager
    def exchange(self) -> Generator[None]:
        """Exchange its state with the global one, and again at the end."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        found = _read_global_states()
        _set_global_states(self._other)
        self._other = found


def _read_global_states() -> list[Tensor]:
    """Return the random states of the CPU and of each device that a seed reaches."""
    state = [torch.get_rng_state()]
    if torch.accelerator.is_available():
        device: Any = torch.get_device_module(torch.accelerator.current_accelerator())
        every: Any = getattr(device, "get_rng_state_all", None)
        state += [device.get_rng_state()] if every is None else every()
    return state


def _set_global_states(states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if torch.accelerator.is_available():
        device: Any = torch.get_device_module(torch.accelerator.current_accelerator())
        every: Any = getattr(device, "set_rng_state_all", None)
        if every is None:
            device.set_rng_state(states[1])
        else:
            every(states[1:])


def rank_logprobs(logits: Tensor, token_id: int, count: int) -> tuple[float, dict[int, float]]:
    """Return the log-probability of a token, and the `count` likeliest, from `logits` [vocab]."""
    values = logits if logits.dtype == torch.float64 else logits.float()
    logprobs = values.log_softmax(dim=-1)
    best = logprobs.topk(min(count, len(logprobs)))
    top = dict(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    return float(logprobs[token_id]), top


class Row:
    """A prompt that is being completed: its tokens, and the choice of its next one.

    A sample is drawn with random numbers of its own: the same seed gives the same ones, whatever
    else is in the batch, and torch's global random state is left alone.
    """

    def __init__(self, prompt: TokenPrompt):
        self.prompt = prompt
        self.generated: list[int] = []
        self.is_done = False
        self.is_greedy = not (prompt.do_sample and prompt.temperature > 0)
        self.numbers = None if self.is_greedy else np.random.default_rng(prompt.seed)

    @property
    def token_ids(self) -> list[int]:
        """All tokens so far, the prompt's and its own."""
        return [*self.prompt.token_ids, *self.generated]

    @property
    def left(self) -> int:
        """The number of tokens that it may still get."""
        return self.prompt.max_new_tokens - len(self.generated)

    def choose(self, logits: Tensor, likeliest: int) -> TokenEvent:
        """Choose the next token from `logits` [vocab], whose largest is at `likeliest`.

        A negative `likeliest` says that they give no log-probabilities: the event has the error.
        """
        prompt = self.prompt
        try:
            token_id = likeliest if self.is_greedy and likeliest >= 0 else self._draw(logits)
        except EngineRuntimeError as error:
            # Without its frames, which hold the logits.
            return TokenEvent(prompt.key, [_PAD], error=error.with_traceback(None))
        if prompt.logprobs is None:
            return TokenEvent(prompt.key, [token_id])
        logprob, top = rank_logprobs(logits, token_id, prompt.logprobs)
        return TokenEvent(prompt.key, [token_id], [logprob], [top])

    def take(self, event: TokenEvent) -> None:
        """Add a chosen token."""
        self.generated += event.token_ids
        is_last = self.generated[-1] in self.prompt.stop_ids or self.left < 1
        self.is_done = is_last or event.error is not None

    def _draw(self, logits: Tensor) -> int:
        """Return a sample of `logits` [vocab]."""
        return next_token(
            logits.cpu().double().numpy(),
            do_sample=True,
            temperature=self.prompt.temperature,
            top_p=self.prompt.top_p,
            top_k=self.prompt.top_k,
            generator=self.numbers,
        )


def make_memory_error(error: BaseException) -> EngineRuntimeError:
    """Return the error of a prompt for which memory ran out though it was alone.

    It lives as long as the prompt's result, and so must not keep what the failed pass held.
    """
    traceback.clear_frames(error.__traceback__)
    failure = EngineRuntimeError(f"memory ran out for this prompt alone: {redact_text(str(error))}")
    failure.__cause__ = error
    return failure


def take_tokens(rows: Sequence[Row], logits: Tensor) -> list[TokenEvent]:
    """Take the next token of each row that isn't done, from `logits` [rows, vocab].

    If it fails, for want of memory, no row has changed: the step is done again.
    """
    top, found = logits.max(dim=-1)
    likeliest: list[int] = found.masked_fill_(~top.isfinite(), -1).tolist()
    left = [(at, row) for at, row in enumerate(rows) if not row.is_done]
    drawn = [(row.numbers, row.numbers.bit_generator.state) for _, row in left if row.numbers]
    try:
        events = [row.choose(logits[at], likeliest[at]) for at, row in left]
    except BaseException:
        for numbers, state in drawn:
            numbers.bit_generator.state = state
        raise
    for (_, row), event in zip(left, events, strict=True):
        row.take(event)
    return events


class _Abandoned(BaseException):
    """Unwinds a call whose iterator was closed; no `except Exception` on its way stops it."""


class _Ended:
    """The end of a call: the exception that ended it, or None if it returned."""

    def __init__(self, error: BaseException | None):
        self.error = error


def run_stepwise(call: Callable[[Callable[[T], None]], None], name: str) -> Iterator[T]:
    """Run `call(report)` on a thread of its own, which only moves while the iterator is advanced.

    Yields what the call reports, in order, and raises its exception. Caller and call never run at
    the same time, so nothing between them needs a lock. Closing the iterator ends the call at its
    next report.
    """
    reports: SimpleQueue[T | _Ended] = SimpleQueue()
    turns: SimpleQueue[bool] = SimpleQueue()

    def report(value: T) -> None:
        reports.put(value)
        if not turns.get():
            raise _Abandoned

    def run() -> None:
        error: BaseException | None = None
        try:
            call(report)
        except _Abandoned:
            return
        except BaseException as caught:  # noqa: BLE001 - raised where the iterator is read
            error = caught
        reports.put(_Ended(error))
        del error

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        while not isinstance(found := reports.get(), _Ended):
            yield found
            turns.put(True)
    except GeneratorExit:
        turns.put(False)
        raise
    finally:
        thread.join()
    error = found.error
    # An exception that its own frames hold would keep the tensors in them alive.
    del found
    try:
        if error is not None:
            raise error
    finally:
        del error


class Generation(ABC):
    """A way to complete prompts."""

    @abstractmethod
    def run(self, feed: PromptQueue) -> Iterator[Events]:
        """Yield the events of each step, until nothing runs and `feed` has nothing."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return its part of `describe_execution`."""

    def forget(self) -> None:
        """Free what can be computed again."""
        return

    def pause(self) -> AbstractContextManager[object]:
        """Return a context in which nothing of it touches the model."""
        return nullcontext()


class FixedBatches(Generation):
    """Completes prompts a batch at a time; a prompt with beams is a batch of its own.

    The settings of one prompt never touch another: each row chooses its own tokens, ends at its own
    limit, and ends alone.

    Args:
        model: the model to run.
        batch_size: prompts of one batch.
        out_of_memory: the exceptions after which half of a batch is tried.
    """

    def __init__(
        self,
        model: CausalModel,
        batch_size: int,
        out_of_memory: OutOfMemory = torch.OutOfMemoryError,
    ):
        self._model = model
        self._batch_size = self._most_rows = batch_size
        self._out_of_memory = out_of_memory

    def run(self, feed: PromptQueue) -> Iterator[Events]:
        while True:
            feed.cancelled()
            prompts = feed.take(self._batch_size)
            if not prompts:
                return
            yield from self.complete(prompts, feed.cancelled)

    def describe(self) -> dict[str, Any]:
        return {"batching": "fixed batches", "generation": "generate"}

    def complete(self, prompts: Sequence[TokenPrompt], cancelled: Cancelled) -> Iterator[Events]:
        """Yield the events of each step until all of `prompts` have ended.

        `cancelled` is asked after each step for the keys that are to be dropped.
        """
        known = {prompt.key: Row(prompt) for prompt in prompts}
        rows = [row for row in known.values() if row.prompt.num_beams == 1]
        waiting = [rows] if rows else []

        def drop() -> None:
            for key in cancelled():
                if key in known:  # also one that waits for its turn
                    known[key].is_done = True

        while waiting:
            batch = [row for row in waiting.pop(0) if not row.is_done]
            if not batch:
                continue
            try:
                yield from self._run_call(
                    lambda report, batch=batch: self._decode(batch, report), drop
                )
            except self._out_of_memory as error:
                if len(batch) == 1:
                    self._batch_size = self._most_rows  # others may fit
                    yield [TokenEvent(batch[0].prompt.key, error=make_memory_error(error))]
                    continue
                half = (len(batch) + 1) // 2
                # A batch of the same size would run out of memory again.
                self._batch_size = min(self._batch_size, half)
                waiting[:0] = [batch[:half], batch[half:]]
        for row in known.values():
            if row.prompt.num_beams > 1 and not row.is_done:
                yield from self._search_beams(row, drop)

    def _run_call(
        self, call: Callable[[Report], None], drop: Callable[[], None]
    ) -> Iterator[Events]:
        for events in run_stepwise(call, "generate"):
            yield events
            drop()

    def _decode(self, rows: Sequence[Row], report: Report) -> None:
        """Call `generate` for all rows; each step's tokens go to `report`."""
        choice = _Choice(rows)
        longest = max(len(row.token_ids) for row in rows)
        padding = [longest - len(row.token_ids) for row in rows]
        token_ids = [[_PAD] * pad + row.token_ids for pad, row in zip(padding, rows, strict=True)]
        mask = [[0] * pad + [1] * (longest - pad) for pad in padding]
        with clear_settings(self._model), use_fast_linear(self._model):
            self._model.generate(
                input_ids=torch.tensor(token_ids, device=self._model.device),
                attention_mask=torch.tensor(mask, device=self._model.device),
                generation_config=GenerationConfig(
                    max_new_tokens=max(row.left for row in rows), do_sample=False, pad_token_id=_PAD
                ),
                logits_processor=LogitsProcessorList([choice]),
                stopping_criteria=StoppingCriteriaList([_End(choice, report)]),
            )

    def _search_beams(self, row: Row, drop: Callable[[], None]) -> Iterator[Events]:
        try:
            with runtime_errors("the beam search"):
                yield from self._run_call(lambda report: self._search(row, report), drop)
        except EngineRuntimeError as error:
            cause = error.__cause__ or error
            if isinstance(cause, self._out_of_memory):
                error = make_memory_error(cause)
            traceback.clear_frames(cause.__traceback__)  # they hold what the search held
            yield [TokenEvent(row.prompt.key, error=error)]

    def _search(self, row: Row, report: Report) -> None:
        prompt = row.prompt
        sampling = {"temperature": prompt.temperature, "top_p": prompt.top_p, "top_k": prompt.top_k}
        settings = GenerationConfig(
            max_new_tokens=prompt.max_new_tokens,
            num_beams=prompt.num_beams,
            do_sample=prompt.do_sample,
            eos_token_id=sorted(prompt.stop_ids) or None,
            pad_token_id=_PAD,
            **(sampling if prompt.do_sample else {}),
        )
        device = self._model.device
        token_ids = torch.tensor([list(prompt.token_ids)], device=device)
        numbers = RandomState(prompt.seed) if prompt.do_sample else None
        with clear_settings(self._model), _exchange(numbers), use_fast_linear(self._model):
            found = self._model.generate(
                input_ids=token_ids,
                attention_mask=torch.ones_like(token_ids),
                generation_config=settings,
                logits_processor=LogitsProcessorList([_Check()]),
                stopping_criteria=StoppingCriteriaList([_EndOfSearch(row, report, numbers)]),
            )
        row.is_done = True
        report([TokenEvent(prompt.key, found[0, token_ids.shape[1] :].tolist(), finish="length")])


class _Choice(LogitsProcessor):
    """Chooses a token for each row at each step of `generate`."""

    def __init__(self, rows: Sequence[Row]):
        self.rows = rows
        self.events: Events = ()

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.events = take_tokens(self.rows, scores)
        if all(row.is_greedy for row in self.rows):
            return scores
        # `generate` takes the largest: leave it the one that was drawn.
        chosen = torch.tensor([row.generated[-1] for row in self.rows], device=scores.device)
        return scores.fill_(-torch.inf).scatter_(1, chosen[:, None], 0.0)


class _End(StoppingCriteria):
    """Reports the tokens of each step of `generate`, and ends the rows that are done."""

    def __init__(self, choice: _Choice, report: Report):
        self._choice = choice
        self._report = report

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        self._report(self._choice.events)
        return torch.tensor([row.is_done for row in self._choice.rows], device=input_ids.device)


class _Check(LogitsProcessor):
    """Ends a beam search whose log-probabilities are no numbers."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        check_logprobs(scores.amax(dim=-1).tolist())
        return scores


class _EndOfSearch(StoppingCriteria):
    """Ends a beam search at any of its steps, if its row is done."""

    def __init__(self, row: Row, report: Report, numbers: RandomState | None):
        self._row = row
        self._report = report
        self._numbers = numbers

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        with _exchange(self._numbers):
            self._report(())
        return torch.full((len(input_ids),), self._row.is_done, device=input_ids.device)


def _exchange(numbers: RandomState | None) -> AbstractContextManager[None]:
    return nullcontext() if numbers is None else numbers.exchange()


@contextmanager
def clear_settings(model: CausalModel) -> Generator[None]:
    """Clear the model's own generation settings, which `generate` would add to a request's.

    A checkpoint's repetition penalty, say, is no part of the request.
    """
    own = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = own
