"""Generation in fixed batches, by the model's own `generate`."""

# torch leaves part of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from evalution_enginekit import TokenEvent, TokenFeed, TokenPrompt
from evalution_transformers.forward import CausalModel
from evalution_transformers.rows import Row, take_all, too_large
from evalution_transformers.sampling import GlobalNumbers
from evalution_transformers.stepwise import StepwiseCall

_PAD = 0
"""Stands to the left of shorter prompts, where nothing looks at it."""

Events = Sequence[TokenEvent]
Report = Callable[[Events], None]
Cancelled = Callable[[], Sequence[int]]


class FixedBatches:
    """Completes prompts a batch at a time; a prompt with beams is a batch of its own.

    What one prompt asks for never touches another: each row chooses its own tokens, ends at its own
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
        out_of_memory: type[BaseException]
        | tuple[type[BaseException], ...] = torch.OutOfMemoryError,
    ):
        self._model = model
        self._batch_size = batch_size
        self._out_of_memory = out_of_memory

    def run(self, feed: TokenFeed) -> Iterator[Events]:
        """Batches of what `feed` has, until it has nothing."""
        while True:
            feed.cancelled()
            prompts = feed.take(self._batch_size)
            if not prompts:
                return
            yield from self.complete(prompts, feed.cancelled)

    def forget(self) -> None:
        """Nothing is kept between two batches."""

    def paused(self) -> AbstractContextManager[None]:
        """Between two steps it does nothing."""
        return nullcontext()

    def describe(self) -> dict[str, Any]:
        return {"batching": "fixed batches", "generation": "generate"}

    def complete(self, prompts: Sequence[TokenPrompt], cancelled: Cancelled) -> Iterator[Events]:
        """The events of each step until all of `prompts` have ended.

        `cancelled` is asked after each step for the keys that are to be dropped.
        """
        rows = [Row(prompt) for prompt in prompts if prompt.num_beams == 1]
        waiting = [rows] if rows else []
        while waiting:
            batch = [row for row in waiting.pop(0) if not row.is_done]
            if not batch:
                continue
            try:
                yield from self._stepped(
                    lambda report, batch=batch: self._decode(batch, report), batch, cancelled
                )
            except self._out_of_memory as error:
                if len(batch) == 1:
                    yield [TokenEvent(batch[0].prompt.key, error=too_large(error))]
                    continue
                half = (len(batch) + 1) // 2
                # Whoever comes next would run out of memory again.
                self._batch_size = min(self._batch_size, half)
                waiting[:0] = [batch[:half], batch[half:]]
        for prompt in prompts:
            if prompt.num_beams > 1:
                yield from self._searched(prompt, cancelled)

    def _stepped(
        self, call: Callable[[Report], None], rows: Sequence[Row], cancelled: Cancelled
    ) -> Iterator[Events]:
        keys = {row.prompt.key: row for row in rows}
        for events in StepwiseCall(call, "generate").steps():
            yield events
            for key in cancelled():
                if key in keys:
                    keys[key].is_done = True

    def _decode(self, rows: Sequence[Row], report: Report) -> None:
        """One `generate` call for all rows; after each step `report` is told what each got."""
        steps = _Steps(rows, report)
        longest = max(len(row.token_ids) for row in rows)
        padding = [longest - len(row.token_ids) for row in rows]
        token_ids = [[_PAD] * pad + row.token_ids for pad, row in zip(padding, rows, strict=True)]
        mask = [[0] * pad + [1] * (longest - pad) for pad in padding]
        with plain_settings(self._model):
            self._model.generate(
                input_ids=torch.tensor(token_ids, device=self._model.device),
                attention_mask=torch.tensor(mask, device=self._model.device),
                generation_config=GenerationConfig(
                    max_new_tokens=max(row.left for row in rows), do_sample=False, pad_token_id=_PAD
                ),
                logits_processor=LogitsProcessorList([steps.processor]),
                stopping_criteria=StoppingCriteriaList([steps.criterion]),
            )

    def _searched(self, prompt: TokenPrompt, cancelled: Cancelled) -> Iterator[Events]:
        row = Row(prompt)
        try:
            yield from self._stepped(lambda report: self._search(row, report), [row], cancelled)
        except self._out_of_memory as error:
            yield [TokenEvent(prompt.key, error=too_large(error))]

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
        with plain_settings(self._model), numbers or nullcontext():
            found = self._model.generate(
                input_ids=token_ids,
                attention_mask=torch.ones_like(token_ids),
                generation_config=settings,
                stopping_criteria=StoppingCriteriaList([_EachStep(row, report, numbers)]),
            )
        row.is_done = True
        report([TokenEvent(prompt.key, found[0, token_ids.shape[1] :].tolist(), finish="length")])


class _Steps:
    """What `generate` calls at each step: tokens are chosen for each row, and reported."""

    def __init__(self, rows: Sequence[Row], report: Report):
        self._rows = rows
        self._report = report
        self._events: Events = ()
        self.processor: LogitsProcessor = _Processor(self._choose)
        self.criterion: StoppingCriteria = _Criterion(self._ended)

    def _choose(self, logits: Tensor) -> Tensor:
        self._events = take_all(self._rows, logits)
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
    """Lets a search be ended from outside at each of its steps."""

    def __init__(self, row: Row, report: Report, numbers: GlobalNumbers | None):
        self._row = row
        self._report = report
        self._numbers = numbers

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        with nullcontext() if self._numbers is None else self._numbers.put_back():
            self._report(())
        return torch.full((len(input_ids),), self._row.is_done, device=input_ids.device)


@contextmanager
def plain_settings(model: CausalModel) -> Generator[None]:
    """The model without generation settings of its own, which `generate` would add to a request's.

    A checkpoint's repetition penalty, say, is no part of what was asked for.
    """
    own = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = own
