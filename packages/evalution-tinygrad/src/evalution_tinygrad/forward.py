"""A model's forward pass over tokens of many sequences in one row, in a few fixed shapes."""

# tinygrad leaves most of its functions without types, and doesn't mark what it exports.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateImportUsage=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from tinygrad import Tensor, TinyJit, UOp

from evalution_tinygrad.attention import Step, attention_of, cache_shape
from evalution_tinygrad.kv_cache import KVCache
from evalution_tinygrad.rotary import Floats, Rotary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from tinygrad.llm.model import Transformer

_RUN = "run"
_SCORED_ROWS = 64
"""Rows of logits that exist at a time when scoring: bounds memory by 64 x vocabulary."""


class Forward:
    """Runs the blocks of tinygrad's transformer.

    Each width of a pass, and each head, is compiled once and then replayed; how many tokens the
    cache holds is a variable of the compiled program.
    """

    def __init__(self, model: Transformer, rotary: Rotary):
        self._model = model
        self._rotary = rotary
        blocks = model.blk
        self._attentions: list[Any] = [attention_of(block) for block in blocks]
        self.cache = KVCache(lambda tokens: [cache_shape(block, tokens) for block in blocks])
        self._compiled: dict[tuple[str, int], Any] = {}
        self._compiled_for = 0

    def run(
        self,
        token_ids: NDArray[np.int64],
        positions: NDArray[np.int64],
        visible: NDArray[np.bool_],
        begin: int,
    ) -> Tensor:
        """Last hidden states [width, dim] of a pass, whose slots begin at `begin`.

        `visible` is [width, capacity]. The result is overwritten by the next pass of this width.
        """
        if self._compiled_for != self.cache.capacity:
            # These programs are bound to the cache's tensors.
            self._compiled = {key: v for key, v in self._compiled.items() if key[0] != _RUN}
            self._compiled_for = self.cache.capacity
        width, capacity = visible.shape
        run = self._program(_RUN, width, self._run)
        return run(
            Tensor(token_ids.astype(np.int32)),
            Tensor(self._rotary.at(positions)),
            Tensor(visible),
            UOp.variable("begin", 0, capacity - width).bind(begin),
            UOp.variable("upto", width, capacity).bind(begin + width),
        )

    def logits(self, hidden: Tensor, rows: list[int], at_most: int) -> Floats:
        """Logits [rows, vocabulary] in float32 of the named rows, at most `at_most` of them."""
        program = self._program("logits", at_most, self._logits)
        return program(self._rows(hidden, rows, at_most)).numpy()[: len(rows)]

    def scores(
        self, hidden: Tensor, rows: list[int], token_ids: list[int]
    ) -> list[tuple[float, bool]]:
        """For each row the log-probability of a token, and whether none has a larger logit."""
        found: list[tuple[float, bool]] = []
        for at in range(0, len(rows), _SCORED_ROWS):
            part = rows[at : at + _SCORED_ROWS]
            wanted, places = np.unique(part, return_inverse=True)
            place, target = np.zeros((2, _SCORED_ROWS), np.int32)
            place[: len(part)], target[: len(part)] = places, token_ids[at : at + _SCORED_ROWS]
            program = self._program("scores", _SCORED_ROWS, self._scores)
            kept = self._rows(hidden, wanted, _SCORED_ROWS)
            values = program(kept, Tensor(place), Tensor(target)).numpy()
            found += [(float(value), bool(greedy)) for value, greedy in values[:, : len(part)].T]
        return found

    def _rows(self, hidden: Tensor, rows: Sequence[int] | NDArray[np.int64], count: int) -> Tensor:
        """The named rows, filled up to `count`: the head has one shape for all passes."""
        index = np.zeros(count, np.int32)
        index[: len(rows)] = rows
        program = self._program(f"{count} rows", cast(int, hidden.shape[0]), _gathered)
        return program(hidden, Tensor(index))

    def _program(self, name: str, width: int, function: Any) -> Any:
        if (name, width) not in self._compiled:
            self._compiled[name, width] = TinyJit(function)
        return self._compiled[name, width]

    def _run(
        self, token_ids: Tensor, rotation: Tensor, visible: Tensor, begin: Any, upto: Any
    ) -> Tensor:
        step = Step(rotation, visible[:, :upto], begin, upto)
        x = self._model.token_embd(token_ids.unsqueeze(0)).float()
        layers = zip(self._model.blk, self._attentions, self.cache.tensors, strict=True)
        for block, attention, cache in layers:
            x = x + attention(block, block.attn_norm(x), cache, step)
            x = (x + block._feed_forward(block.ffn_norm(x))).contiguous()  # pyright: ignore[reportPrivateUsage]
        return self._model.output_norm(x)[0].float().realize()

    def _logits(self, rows: Tensor) -> Tensor:
        return self._model.output(rows).float().realize()

    def _scores(self, rows: Tensor, places: Tensor, targets: Tensor) -> Tensor:
        logits = self._model.output(rows).float().contiguous()
        logprobs = logits.log_softmax(-1)[places, targets]
        greedy = logits[places, targets] >= logits.max(-1)[places]
        return logprobs.stack(greedy.float()).realize()


def _gathered(hidden: Tensor, rows: Tensor) -> Tensor:
    return hidden[rows].contiguous().realize()
