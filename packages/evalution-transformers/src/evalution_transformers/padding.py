"""Scoring for models that can't share prefixes: whole sequences, padded on the right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from evalution_enginekit import BatchLimits, TokenScore, TokenSpan, batches, run_halving
from evalution_transformers.forward import Forward, Inputs, RowScores, score_rows
from evalution_transformers.scoring import Tally


class PaddedScorer:
    """Scores each sequence by itself; spans that are fed the same tokens share one row.

    Args:
        forward: the model.
        pass_tokens: padded tokens of one forward pass.
        alike: rows of one pass must be equally long, for a model whose rotary embedding depends on
            the longest row.
        out_of_memory: the exceptions after which half of a batch is tried.
    """

    def __init__(
        self,
        forward: Forward,
        *,
        pass_tokens: int,
        alike: bool = False,
        out_of_memory: type[BaseException]
        | tuple[type[BaseException], ...] = torch.OutOfMemoryError,
    ):
        self._forward = forward
        self._pass_tokens = pass_tokens
        self._alike = alike
        self._out_of_memory = out_of_memory
        self._limits = BatchLimits()

    def forget(self) -> None:
        """Nothing is kept between two calls."""

    def score(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        """After each forward pass, the scores that are complete, in the order of the spans."""
        tally = Tally(spans)
        same: dict[tuple[int, ...], list[int]] = {}
        for at, span in enumerate(spans):
            same.setdefault(tuple(span.fed), []).append(at)
        rows = list(same)
        for batch in self._batches([len(row) for row in rows]):
            run_halving(
                [rows[at] for at in batch],
                lambda part: self._run(part, [same[row] for row in part], spans, tally),
                length=len,
                limits=self._limits,
                out_of_memory=self._out_of_memory,
            )
            yield tally.take()

    def _batches(self, lengths: list[int]) -> Iterator[list[int]]:
        if not self._alike:
            yield from batches(lengths, token_budget=self._pass_tokens)
            return
        for length in sorted(set(lengths), reverse=True):
            alike = [at for at, found in enumerate(lengths) if found == length]
            size = max(1, self._pass_tokens // length)
            yield from (alike[begin : begin + size] for begin in range(0, len(alike), size))

    def _run(
        self,
        rows: Sequence[tuple[int, ...]],
        owners: Sequence[list[int]],
        spans: Sequence[TokenSpan],
        tally: Tally,
    ) -> Sequence[None]:
        slots = [
            (row, at, slot)
            for row, found in enumerate(owners)
            for at in found
            for slot in range(len(spans[at].token_ids) - spans[at].start)
        ]
        device = self._forward.device
        found = self._scored(
            rows,
            torch.tensor([row for row, _, _ in slots], device=device),
            torch.tensor([spans[at].start - 1 + slot for _, at, slot in slots], device=device),
            torch.tensor(
                [spans[at].token_ids[spans[at].start + slot] for _, at, slot in slots],
                device=device,
            ),
        )
        for (_, at, slot), logprob, greedy in zip(slots, found.logprobs, found.greedy, strict=True):
            tally.add(at, slot, logprob, greedy)
        return [None] * len(rows)

    def _scored(
        self,
        rows: Sequence[tuple[int, ...]],
        batch_rows: torch.Tensor,
        columns: torch.Tensor,
        targets: torch.Tensor,
    ) -> RowScores:
        # Causal attention never looks at what follows: padding on the right needs no mask.
        longest = max(len(row) for row in rows)
        token_ids = torch.tensor([[*row, *row[-1:] * (longest - len(row))] for row in rows])
        inputs = Inputs(token_ids.to(self._forward.device))
        return score_rows(self._forward, inputs, batch_rows, columns, targets)
