"""A causal model's forward pass: its cache, the prefix that sequences share, and logits of rows."""

# torch leaves part of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from evalution_core.encoding import shared_prefix
from evalution_enginekit.distributions import Rows, count_block_rows
from evalution_transformers.linear import use_fast_linear
from evalution_transformers.upstream import CausalModel

_ROWS_AT_ONCE = 256
"""Rows of logits that exist at a time: bounds memory by 256 x vocabulary."""
_VALUES_ON_DEVICE = 1 << 26
"""Logits that exist at a time on a GPU, which computes a block faster than it is given one."""
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
            "input_ids": send(token_ids, self.device),
            "use_cache": cache is not None,
        }
        if positions is not None:
            given["position_ids"] = send(positions, self.device)
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
        on_cpu = states.device.type == "cpu"
        self._rows_at_once = max(_ROWS_AT_ONCE, 0 if on_cpu else _VALUES_ON_DEVICE // vocabulary)

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
        places = send(places, forward.device)
        return cls(forward, forward.compute_states(inputs, places[0], places[1]), at)

    @torch.no_grad()
    def begin_scores(self, token_ids: Sequence[int]) -> Callable[[], list[tuple[float, bool]]]:
        """Begin to score the targets; log-probabilities are computed in float32 at least."""
        order = torch.argsort(self._at, stable=True)
        sorted_at = self._at[order]
        device = self._states.device
        rows = send(sorted_at, device)
        targets = send(torch.tensor(token_ids)[order], device)
        logprobs: list[Tensor] = []
        greedy: list[Tensor] = []
        begin = first = 0
        for part in self._states.split(self._rows_at_once):
            end = begin + len(part)
            last = int(torch.searchsorted(sorted_at, end))
            chosen, is_top = _score_targets(
                self._forward.project(part), rows[first:last] - begin, targets[first:last]
            )
            logprobs.append(chosen)
            greedy.append(is_top)
            begin, first = end, last
        back = torch.argsort(order)
        copies = _copy_back(torch.cat(logprobs).double(), torch.cat(greedy))

        def read() -> list[tuple[float, bool]]:
            values, tops = copies()
            return list(zip(values[back].tolist(), tops[back].tolist(), strict=True))

        return read

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


def _copy_back(*tensors: Tensor) -> Callable[[], list[Tensor]]:
    """Begin to copy tensors to main memory; the result waits for them, and for nothing later."""
    on_cuda = tensors[0].device.type == "cuda"
    copies = [tensor.to("cpu", non_blocking=on_cuda) for tensor in tensors]
    done = torch.cuda.current_stream(tensors[0].device).record_event() if on_cuda else None

    def read() -> list[Tensor]:
        if done is not None:
            done.synchronize()
        return copies

    return read


def _score_targets(logits: Tensor, rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probability and greediness of each target.

    `logits` [n, vocab] has any dtype; it may be overwritten, as another block of it costs time.
    """
    values = logits if logits.dtype == torch.float64 else logits.float()
    rows, targets = rows.to(values.device), targets.to(values.device)
    chosen = values[rows, targets]
    top = values.amax(dim=-1)
    is_greedy = chosen >= top[rows]
    if values.device.type == "cpu":
        # It computes a row while the processor's cache holds it, where the operations below read
        # and write the whole block four times.
        torch.log_softmax(values, dim=-1, out=values)
        return values[rows, targets], is_greedy
    # Differences from the top first: logit and log-sum-exp may be large and nearly equal.
    rest = values.sub_(top[:, None]).exp_().sum(dim=-1).log_()
    return (chosen - top[rows]) - rest[rows], is_greedy


def make_tree_mask(
    ends: Sequence[Sequence[int]], behind: int, device: torch.device | None = None
) -> Tensor:
    """Return which token sees which, as booleans [rows, 1, tokens, behind + tokens], on the device.

    In each row nodes of prefix trees stand side by side, each before its children, behind `behind`
    cached tokens that all see. `ends[r][t]` is where in row r the subtree of token t's node ends:
    no token from there on sees it.
    """
    # Made where it is read: tokens x tokens take a CPU as long as a GPU takes for the pass.
    end = send(ends, device)
    at = torch.arange(end.shape[1], device=end.device)
    seen = (at[:, None] >= at) & (at[:, None] < end[:, None])
    cached = seen.new_ones(*seen.shape[:2], behind)
    return torch.cat((cached, seen), dim=2)[:, None]


def send(values: Any, device: torch.device | None) -> Tensor:
    """Return numbers as a tensor on a device, without waiting for what that has to do before."""
    made = values if isinstance(values, Tensor) else torch.tensor(values)
    if device is not None and device.type == "cuda":
        # From other memory the copy begins once the device has run all that it was given.
        return made.pin_memory().to(device, non_blocking=True)
    return made.to(device)


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


def read_layer(layer: Any) -> tuple[Tensor, Tensor]:
    """Return the keys and values of a layer that has some."""
    return layer.keys, layer.values


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
        token_ids: Sequence[Sequence[int]],
        positions: Sequence[Sequence[int]],
        ends: Sequence[Sequence[int]],
        *,
        keep: bool = False,
    ) -> Inputs:
        """Return a pass over rows of nodes, each behind the prefix; call `prune` when it has run.

        `ends` are those of `make_tree_mask`. With `keep`, keys and values can be read off the
        inputs' cache until then.
        """
        width = len(ends[0])
        is_plain = all(row.count(width) == width for row in ends)
        seen = None if is_plain else make_tree_mask(ends, len(self), self._forward.device)
        cache = None
        if self._token_ids or keep:
            cache = self._cache if len(ends) == 1 else self._repeat(len(ends))
        return self._forward.inputs(token_ids, positions, seen, cache)

    def _repeat(self, rows: int) -> DynamicCache:
        """Return a cache that has the prefix in so many rows, and adds nothing to this one."""
        repeated = make_cache()
        for held in self._cache.layers:
            keys, values = read_layer(held)
            layer = RoomyLayer()
            layer.keys = keys.expand(rows, -1, -1, -1)
            layer.values = values.expand(rows, -1, -1, -1)
            layer.dtype, layer.device, layer.is_initialized = keys.dtype, keys.device, True
            repeated.layers.append(layer)
        return repeated

    def prune(self) -> None:
        """Drop the tokens that such a pass put behind the prefix."""
        surplus = self._cache.get_seq_length() - len(self)
        if not self._token_ids:
            self.clear()
        elif surplus:
            self._cache.crop(-surplus)
