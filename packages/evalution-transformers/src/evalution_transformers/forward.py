"""A causal model's forward pass: its cache, the prefix that sequences share, and logits of rows."""

# torch leaves part of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from evalution_enginekit.distributions import Rows, count_block_rows
from evalution_enginekit.planning import shared_prefix
from evalution_transformers.linear import use_fast_linear
from evalution_transformers.upstream import CausalModel

_ROWS_AT_ONCE = 256
"""Rows of logits that exist at a time: bounds memory by 256 x vocabulary."""
_LEAST_ROOM = 64
MASKED_ATTENTION = {"sdpa": False, "eager": True}
"""Attention that takes any mask from its caller; True: as numbers that are added to its scores."""


Inputs = dict[str, Any]
"""Arguments of a model's forward pass."""


class Forward:
    """Computes logits of chosen rows, with as little of the vocabulary projection as possible.

    `splits` says that the model's output layer, applied to the last hidden states, gives its
    logits; then it is applied to the wanted rows alone, a chunk at a time. Otherwise the model's
    own forward pass is asked for the rows, which keeps whatever it does to logits (scaling,
    soft-capping).
    """

    def __init__(self, model: CausalModel, *, splits: bool = True):
        self.model = model
        self.splits = splits and model.get_output_embeddings() is not None
        self._takes_rows = "logits_to_keep" in inspect.signature(model.forward).parameters
        attention = getattr(model.config.get_text_config(decoder=True), "_attn_implementation", "")
        self._adds_mask = MASKED_ATTENTION.get(attention, False)

    @property
    def keeps_no_square(self) -> bool:
        """True if a causal pass needs memory in proportion to its tokens alone."""
        return self.splits and not self._adds_mask

    @property
    def device(self) -> torch.device:
        return self.model.device

    def inputs(
        self,
        token_ids: Sequence[Sequence[int]],
        positions: Sequence[Sequence[int]] | None = None,
        mask: Tensor | None = None,
        cache: Any = None,
    ) -> Inputs:
        """Return inputs of rows of tokens, as many in each row, on the model's device.

        Args:
            token_ids: of each row.
            positions: theirs; None where each row is a sequence from its first token.
            mask: [rows, tokens] with 0 for padding; or booleans of which token sees which, as
                `make_tree_mask` returns them; None for plain causal attention.
            cache: is extended by the pass.
        """
        given: Inputs = {
            "input_ids": torch.tensor(token_ids, device=self.device),
            "use_cache": cache is not None,
        }
        if positions is not None:
            given["position_ids"] = torch.tensor(positions, device=self.device)
        if mask is not None:
            given["attention_mask"] = self._convert_mask(mask.to(self.device))
        if cache is not None:
            given["past_key_values"] = cache
        return given

    def _convert_mask(self, mask: Tensor) -> Tensor:
        """Return a mask as the attention takes it: booleans, or numbers added to its scores."""
        if not self._adds_mask or mask.dtype != torch.bool:
            return mask
        dtype = self.model.dtype
        return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)

    def run(self, inputs: Inputs) -> None:
        """Extend the cache of `inputs` without computing logits."""
        with torch.no_grad(), use_fast_linear(self.model):
            self.model.base_model(**inputs)

    def logits(self, inputs: Inputs, rows: Tensor, columns: Tensor) -> Tensor:
        """Return logits [n, vocab] of token `columns[i]` of sequence `rows[i]`."""
        return self.project(self.compute_states(inputs, rows, columns))

    @torch.no_grad()
    def compute_states(self, inputs: Inputs, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the last hidden states [n, width] of these tokens; without `splits`, logits."""
        with use_fast_linear(self.model):
            if self.splits:
                found = self.model.base_model(**inputs).last_hidden_state
            elif self._takes_rows:
                wanted, columns = torch.unique(columns, return_inverse=True)
                found = self.model(**inputs, logits_to_keep=wanted).logits
            else:
                found = self.model(**inputs).logits
        return found[rows.to(found.device), columns.to(found.device)]

    @torch.no_grad()
    def project(self, states: Tensor) -> Tensor:
        """Return the logits of such states."""
        if not self.splits:
            return states
        with use_fast_linear(self.model):
            return cast("torch.nn.Module", self.model.get_output_embeddings())(states)


class TorchLogits:
    """Logits of a pass's targets, made of its last hidden states by the block.

    Args:
        forward: the model.
        states: as `Forward.compute_states` returns them, [n, width].
        at: target i reads row `at[i]` of them.
    """

    def __init__(self, forward: Forward, states: Tensor, at: Tensor):
        self._forward = forward
        self._states = states
        self._at = at
        vocabulary = int(forward.model.config.get_text_config(decoder=True).vocab_size)
        self.block_rows = count_block_rows(vocabulary)

    @classmethod
    def run(
        cls,
        forward: Forward,
        inputs: Inputs,
        columns: Sequence[int],
        rows: Sequence[int] | None = None,
    ) -> TorchLogits:
        """Run a pass; target i is behind token `columns[i]` of sequence `rows[i]`, else the first.

        A token that several targets of a block read is projected once.
        """
        read = torch.tensor([rows or [0] * len(columns), columns])
        places, at = torch.unique(read, dim=1, return_inverse=True, sorted=True)
        return cls(forward, forward.compute_states(inputs, places[0], places[1]), at)

    @torch.no_grad()
    def score(self, token_ids: Sequence[int]) -> list[tuple[float, bool]]:
        """Return log-probability and greediness of each target, computed in float32 at least."""
        order = torch.argsort(self._at, stable=True)
        sorted_at, sorted_targets = self._at[order], torch.tensor(token_ids)[order]
        logprobs: list[Tensor] = []
        greedy: list[Tensor] = []
        begin = first = 0
        for part in self._states.split(_ROWS_AT_ONCE):
            end = begin + len(part)
            last = int(torch.searchsorted(sorted_at, end))
            chosen, is_top = _score_targets(
                self._forward.project(part),
                sorted_at[first:last] - begin,
                sorted_targets[first:last],
            )
            logprobs.append(chosen)
            greedy.append(is_top)
            begin, first = end, last
        back = torch.argsort(order)
        found = torch.cat(logprobs).double().cpu()[back].tolist()
        return list(zip(found, torch.cat(greedy).cpu()[back].tolist(), strict=True))

    @torch.no_grad()
    def read(self, targets: Sequence[int]) -> Rows:
        """Return the rows of these targets, normalised in float32 at least where the logits are."""
        logits = self._forward.project(self._states[self._at[targets]])
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        return logits.log_softmax(dim=-1, dtype=dtype).float().cpu().numpy()

    def keep(self, targets: Sequence[int]) -> TorchLogits:
        """Return the same of these targets alone."""
        states = self._states[self._at[targets]]
        return TorchLogits(self._forward, states, torch.arange(len(targets)))


def _score_targets(logits: Tensor, rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probability and greediness of each target.

    `logits` [n, vocab] has any dtype; it may be overwritten, as another block of it costs time.
    """
    values = logits if logits.dtype == torch.float64 else logits.float()
    rows, targets = rows.to(values.device), targets.to(values.device)
    chosen = values[rows, targets]
    top = values.amax(dim=-1)
    # Differences from the top first: logit and log-sum-exp may be large and nearly equal.
    rest = values.sub_(top[:, None]).exp_().sum(dim=-1).log_()
    return (chosen - top[rows]) - rest[rows], chosen >= top[rows]


def make_tree_mask(
    owners: Sequence[int], ancestors: Sequence[Sequence[bool]], behind: int
) -> Tensor:
    """Return which token sees which, as booleans [1, 1, tokens, behind + tokens].

    Segments of a prefix tree stand side by side in one row, behind `behind` cached tokens that all
    see. `owners[t]` is the segment of token t; `ancestors[i][j]` says that segment i is or
    continues segment j.
    """
    owner = torch.tensor(owners)
    seen = torch.tensor(ancestors)[owner][:, owner].tril_()
    cached = seen.new_ones(len(owners), behind)
    return torch.cat((cached, seen), dim=1)[None, None]


class RoomyLayer(DynamicLayer):
    """Keeps keys and values [rows, heads, tokens, head size] at the beginning of larger tensors.

    The layer of Transformers copies everything it holds at each step.
    """

    _key_room: Tensor | None = None
    _value_room: Tensor | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append tokens and return all, as views that are valid until the next call."""
        length = self.get_seq_length()
        end = length + key_states.shape[-2]
        self._key_room = _with_room(self._key_room, self.keys if length else None, key_states, end)
        self._value_room = _with_room(
            self._value_room, self.values if length else None, value_states, end
        )
        self._key_room[..., length:end, :] = key_states
        self._value_room[..., length:end, :] = value_states
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = self._key_room[..., :end, :], self._value_room[..., :end, :]
        self.is_initialized = True
        return self.keys, self.values


def _with_room(room: Tensor | None, held: Tensor | None, added: Tensor, end: int) -> Tensor:
    """Return a tensor that begins with `held` and has room for `end` tokens; `room` if it does."""
    if (
        room is not None
        and held is not None
        and held.data_ptr() == room.data_ptr()
        and held.shape[0] == room.shape[0]
        and end <= room.shape[-2]
    ):
        return room
    shape = (*added.shape[:-2], end + max(_LEAST_ROOM, end // 4), added.shape[-1])
    larger = torch.empty(shape, dtype=added.dtype, device=added.device)
    if held is not None:
        larger[..., : held.shape[-2], :] = held
    return larger


def make_cache() -> DynamicCache:
    """Return an empty cache of such layers, for a model whose layers all attend to everything."""
    cache = DynamicCache()
    cache.layer_class_to_replicate = RoomyLayer
    return cache


class SharedPrefix:
    """Caches keys and values of the beginning that sequences share; it is rewound and extended."""

    def __init__(self, forward: Forward):
        self._forward = forward
        self._token_ids: list[int] = []
        self._cache = make_cache()

    def __len__(self) -> int:
        return len(self._token_ids)

    def count_shared(self, token_ids: Sequence[int]) -> int:
        """Return how many tokens at the beginning of `token_ids` are cached."""
        return shared_prefix(self._token_ids, token_ids)

    def clear(self) -> None:
        """Drop all tokens, as is due after a forward pass that failed half-way too."""
        self._token_ids = []
        self._cache = make_cache()

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens alone."""
        surplus = len(self._token_ids) - length
        if surplus <= 0:
            return
        if length:
            self._cache.crop(-surplus)
            del self._token_ids[length:]
        else:
            self.clear()

    def passes(
        self, token_ids: Sequence[int], begin: int, at_once: int
    ) -> Iterator[tuple[range, Inputs]]:
        """Rewind to `begin` and add the rest of `token_ids`, in passes that the caller runs.

        Yields the positions of each pass, and its inputs. The passes are of the same size, at most
        `at_once` tokens each.
        """
        self.rewind(begin)
        count = -(-(len(token_ids) - begin) // at_once)
        ends = [begin + (len(token_ids) - begin) * at // max(1, count) for at in range(count + 1)]
        for low, high in pairwise(ends):
            place, piece = range(low, high), list(token_ids[low:high])
            inputs = self._forward.inputs([piece], [place], None, self._cache)
            self._token_ids += piece
            yield place, inputs

    def continue_with(
        self,
        token_ids: list[int],
        positions: Sequence[int],
        owners: Sequence[int],
        ancestors: Sequence[Sequence[bool]],
        *,
        keep: bool = False,
    ) -> Inputs:
        """Return a pass over segments behind the prefix; call `prune` when it has run.

        `owners` and `ancestors` are those of `make_tree_mask`. With `keep`, keys and values can be
        read off the inputs' cache until then.
        """
        is_path = all(all(seen[: at + 1]) for at, seen in enumerate(ancestors))
        seen = None if is_path else make_tree_mask(owners, ancestors, len(self))
        cache = self._cache if self._token_ids or keep else None
        return self._forward.inputs([token_ids], [positions], seen, cache)

    def prune(self, count: int) -> None:
        """Drop the `count` tokens that such a pass put behind the prefix."""
        if self._token_ids:
            self._cache.crop(-count)
        else:
            self.clear()
