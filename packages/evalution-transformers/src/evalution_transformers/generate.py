"""Generation: choosing a prompt's next token, and fixed batches by the model's own `generate`."""

# torch leaves part of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import secrets
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

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
from evalution_enginekit import PromptQueue, TokenEvent, TokenPrompt
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


class Choice:
    """Chooses one prompt's tokens, with random numbers of its own.

    The same seed gives the same numbers, whatever else is in the batch, and torch's global random
    state is left alone.
    """

    def __init__(self, prompt: TokenPrompt):
        self._prompt = prompt
        self._generator: torch.Generator | None = None
        if prompt.do_sample and prompt.temperature > 0:
            seed = secrets.randbits(_SEED_BITS) if prompt.seed is None else prompt.seed
            self._generator = torch.Generator().manual_seed(seed % (1 << _SEED_BITS))

    @property
    def is_greedy(self) -> bool:
        return self._generator is None

    def draw(self, logits: Tensor) -> int:
        """Return a sample of `logits` [vocab], for a prompt that isn't greedy.

        The logits pass temperature, `top_k` and `top_p` in the order of Transformers: `top_k` keeps
        ties with the k-th largest, `top_p` the smallest set of likeliest tokens that reach it.
        """
        assert self._generator is not None
        prompt = self._prompt
        values = (logits.cpu() if logits.device.type == "mps" else logits).double()
        # The top logit becomes 0 before the division, so that a tiny temperature can't overflow it.
        scaled = (values - values.max()) / prompt.temperature
        scaled, token_ids = scaled.sort(descending=True, stable=True)
        if 0 < prompt.top_k < len(scaled):
            scaled = scaled[scaled >= scaled[prompt.top_k - 1]]
        weights = scaled.exp()
        cumulative = weights.cumsum(0)
        if prompt.top_p < 1:
            kept = int(((cumulative - weights) < prompt.top_p * cumulative[-1]).sum())
            cumulative = cumulative[: max(1, kept)]
        number = torch.rand((), dtype=torch.float64, generator=self._generator)
        place = torch.searchsorted(
            cumulative, number.to(cumulative.device) * cumulative[-1], right=True
        )
        return int(token_ids[min(int(place), len(cumulative) - 1)])


class GlobalNumbers:
    """Seeds torch's global random state for a beam search, which draws from nothing else.

    The state is as it was found when the search is over, and while `put_back` is entered.
    """

    def __init__(self, seed: int | None):
        self._seed = secrets.randbits(_SEED_BITS) if seed is None else seed % (1 << _SEED_BITS)
        self._found: list[Tensor] = []

    def __enter__(self) -> None:
        self._found = _global_states()
        torch.manual_seed(self._seed)

    def __exit__(self, *_: object) -> None:
        _set_global_states(self._found)

    @contextmanager
    def put_back(self) -> Generator[None]:
        own = _global_states()
        _set_global_states(self._found)
        try:
            yield
        finally:
            self._found = _global_states()
            _set_global_states(own)


def _global_states() -> list[Tensor]:
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
    """A prompt that is being completed: its tokens, and the choice of its next one."""

    def __init__(self, prompt: TokenPrompt):
        self.prompt = prompt
        self.generated: list[int] = []
        self.is_done = False
        self._choice = Choice(prompt)

    @property
    def token_ids(self) -> list[int]:
        """All tokens so far, the prompt's and its own."""
        return [*self.prompt.token_ids, *self.generated]

    @property
    def left(self) -> int:
        """The number of tokens that it may still get."""
        return self.prompt.max_new_tokens - len(self.generated)

    @property
    def is_greedy(self) -> bool:
        return self._choice.is_greedy

    def take(self, logits: Tensor, likeliest: int) -> TokenEvent:
        """Choose the next token from `logits` [vocab], whose largest is at `likeliest`."""
        prompt = self.prompt
        token_id = likeliest if self._choice.is_greedy else self._choice.draw(logits)
        self.generated.append(token_id)
        self.is_done = token_id in prompt.stop_ids or self.left < 1
        if prompt.logprobs is None:
            return TokenEvent(prompt.key, [token_id])
        logprob, top = rank_logprobs(logits, token_id, prompt.logprobs)
        return TokenEvent(prompt.key, [token_id], [logprob], [top])


def make_memory_error(error: BaseException) -> EngineRuntimeError:
    """Return the error of a prompt for which memory ran out though it was alone.

    It lives as long as the prompt's result, and so must not keep what the failed pass held.
    """
    traceback.clear_frames(error.__traceback__)
    failure = EngineRuntimeError(f"memory ran out for this prompt alone: {redact_text(str(error))}")
    failure.__cause__ = error
    return failure


def take_tokens(rows: Sequence[Row], logits: Tensor) -> list[TokenEvent]:
    """Take the next token of each row that isn't done, from `logits` [rows, vocab]."""
    likeliest: list[int] = logits.argmax(dim=-1).tolist()
    return [row.take(logits[at], likeliest[at]) for at, row in enumerate(rows) if not row.is_done]


class _Abandoned(BaseException):
    """Unwinds a call whose iterator was closed; no `except Exception` on its way stops it."""


class _Ended:
    """The end of a call: the exception that ended it, or None if it returned."""

    def __init__(self, error: BaseException | None):
        self.error = error


class StepwiseCall(Generic[T]):
    """Runs `call(report)` on a thread of its own, which only moves while the iterator is advanced.

    Caller and call never run at the same time, so nothing between them needs a lock. Closing the
    iterator ends the call at its next report.
    """

    def __init__(self, call: Callable[[Callable[[T], None]], None], name: str):
        self._call = call
        self._name = name
        self._reports: SimpleQueue[T | _Ended] = SimpleQueue()
        self._turns: SimpleQueue[bool] = SimpleQueue()

    def steps(self) -> Iterator[T]:
        """Yield what the call reports, in order; its exception is raised here."""
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        thread.start()
        try:
            while True:
                report = self._reports.get()
                if isinstance(report, _Ended):
                    break
                yield report
                self._turns.put(True)
        except GeneratorExit:
            self._turns.put(False)
            raise
        finally:
            thread.join()
        error = report.error
        # An exception that its own frames hold would keep the tensors in them alive.
        del report
        try:
            if error is not None:
                raise error
        finally:
            del error

    def _report(self, value: T) -> None:
        self._reports.put(value)
        if not self._turns.get():
            raise _Abandoned

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._call(self._report)
        except _Abandoned:
            return
        except BaseException as caught:  # noqa: BLE001 - raised where the iterator is read
            error = caught
        self._reports.put(_Ended(error))
        del error


def is_plain_greedy(prompt: TokenPrompt) -> bool:
    """Return whether a prompt takes the likeliest tokens, without beams and log-probabilities."""
    sampled = prompt.do_sample and prompt.temperature > 0
    return not sampled and prompt.num_beams == 1 and prompt.logprobs is None


class FixedBatches:
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
        self._batch_size = batch_size
        self._out_of_memory = out_of_memory

    def run(self, feed: PromptQueue) -> Iterator[Events]:
        """Yield the events of each step, batch by batch, until `feed` has nothing."""
        while True:
            feed.cancelled()
            prompts = feed.take(self._batch_size)
            if not prompts:
                return
            yield from self.complete(prompts, feed.cancelled)

    def forget(self) -> None:
        """Do nothing: nothing is kept between two batches."""

    def pause(self) -> AbstractContextManager[None]:
        """Return an empty context: between two steps nothing touches the model."""
        return nullcontext()

    def describe(self) -> dict[str, Any]:
        """Return its part of `describe_execution`."""
        return {"batching": "fixed batches", "generation": "generate"}

    def complete(self, prompts: Sequence[TokenPrompt], cancelled: Cancelled) -> Iterator[Events]:
        """Yield the events of each step until all of `prompts` have ended.

        `cancelled` is asked after each step for the keys that are to be dropped.
        """
        rows = [Row(prompt) for prompt in prompts if prompt.num_beams == 1]
        waiting = [rows] if rows else []
        while waiting:
            batch = [row for row in waiting.pop(0) if not row.is_done]
            if not batch:
                continue
            try:
                yield from self._run_call(
                    lambda report, batch=batch: self._decode(batch, report), batch, cancelled
                )
            except self._out_of_memory as error:
                if len(batch) == 1:
                    yield [TokenEvent(batch[0].prompt.key, error=make_memory_error(error))]
                    continue
                half = (len(batch) + 1) // 2
                # A batch of the same size would run out of memory again.
                self._batch_size = min(self._batch_size, half)
                waiting[:0] = [batch[:half], batch[half:]]
        for prompt in prompts:
            if prompt.num_beams > 1:
                yield from self._search_beams(prompt, cancelled)

    def _run_call(
        self, call: Callable[[Report], None], rows: Sequence[Row], cancelled: Cancelled
    ) -> Iterator[Events]:
        keys = {row.prompt.key: row for row in rows}
        for events in StepwiseCall(call, "generate").steps():
            yield events
            for key in cancelled():
                if key in keys:
                    keys[key].is_done = True

    def _decode(self, rows: Sequence[Row], report: Report) -> None:
        """Call `generate` for all rows; each step's tokens go to `report`."""
        steps = _Steps(rows, report)
        longest = max(len(row.token_ids) for row in rows)
        padding = [longest - len(row.token_ids) for row in rows]
        token_ids = [[_PAD] * pad + row.token_ids for pad, row in zip(padding, rows, strict=True)]
        mask = [[0] * pad + [1] * (longest - pad) for pad in padding]
        with clear_settings(self._model):
            self._model.generate(
                input_ids=torch.tensor(token_ids, device=self._model.device),
                attention_mask=torch.tensor(mask, device=self._model.device),
                generation_config=GenerationConfig(
                    max_new_tokens=max(row.left for row in rows), do_sample=False, pad_token_id=_PAD
                ),
                logits_processor=LogitsProcessorList([steps.processor]),
                stopping_criteria=StoppingCriteriaList([steps.criterion]),
            )

    def _search_beams(self, prompt: TokenPrompt, cancelled: Cancelled) -> Iterator[Events]:
        row = Row(prompt)
        try:
            yield from self._run_call(lambda report: self._search(row, report), [row], cancelled)
        except self._out_of_memory as error:
            yield [TokenEvent(prompt.key, error=make_memory_error(error))]

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
        numbers = GlobalNumbers(prompt.seed) if prompt.do_sample else None
        with clear_settings(self._model), numbers or nullcontext():
            found = self._model.generate(
                input_ids=token_ids,
                attention_mask=torch.ones_like(token_ids),
                generation_config=settings,
                stopping_criteria=StoppingCriteriaList([_EachStep(row, report, numbers)]),
            )
        row.is_done = True
        report([TokenEvent(prompt.key, found[0, token_ids.shape[1] :].tolist(), finish="length")])


class _Steps:
    """Hooks of `generate`: at each step they choose a token for each row, and report it."""

    def __init__(self, rows: Sequence[Row], report: Report):
        self._rows = rows
        self._report = report
        self._events: Events = ()
        self.processor: LogitsProcessor = _Processor(self._choose)
        self.criterion: StoppingCriteria = _Criterion(self._ended)

    def _choose(self, logits: Tensor) -> Tensor:
        self._events = take_tokens(self._rows, logits)
        if all(row.is_greedy for row in self._rows):
            return logits
        # `generate` takes the largest: leave it the one that was drawn.
        chosen = torch.tensor([row.generated[-1] for row in self._rows], device=logits.device)
        return torch.full_like(logits, -torch.inf).scatter_(1, chosen[:, None], 0.0)

    def _ended(self) -> list[bool]:
        self._report(self._events)
        return [row.is_done for row in self._rows]


class _Processor(LogitsProcessor):
    def __init__(self, choose: Callable[[Tensor], Tensor]):
        self._choose = choose

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return self._choose(scores)


class _Criterion(StoppingCriteria):
    def __init__(self, ended: Callable[[], list[bool]]):
        self._ended = ended

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        return torch.tensor(self._ended(), device=input_ids.device)


class _EachStep(StoppingCriteria):
    """Ends a beam search at any of its steps, if its row is done."""

    def __init__(self, row: Row, report: Report, numbers: GlobalNumbers | None):
        self._row = row
        self._report = report
        self._numbers = numbers

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        with nullcontext() if self._numbers is None else self._numbers.put_back():
            self._report(())
        return torch.full((len(input_ids),), self._row.is_done, device=input_ids.device)


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
