"""A compiled model with its keys and values inside: what it is fed, and its state in and out."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy
from numpy.typing import NDArray

from evalution_openvino.row_logits import ROWS
from evalution_openvino.upstream import Compiled, Tensor, openvino

Ids = NDArray[numpy.int64]
Logits = NDArray[numpy.float32]

_TOKENS_AXIS = 2
"""Of a state [sequences, heads, tokens, head size]."""


_NO_MEMORY = ("failed to allocate", "bad_alloc", "can't allocate memory")
"""What a CPU's buffers, OpenVINO's tensors and torch's say, each within a longer text."""


class OutOfMemoryError(MemoryError):
    """A pass for which OpenVINO could not allocate memory."""


@contextmanager
def telling_out_of_memory() -> Generator[None]:
    """Raise `OutOfMemoryError` for the bare errors that OpenVINO and torch have for it."""
    try:
        yield
    except RuntimeError as error:
        if any(words in str(error).lower() for words in _NO_MEMORY):
            raise OutOfMemoryError(str(error)) from error
        raise


@dataclass(frozen=True, slots=True)
class Pass:
    """Tokens for one run of the model, [sequences, tokens] like `positions`.

    `mask` is [sequences, all tokens so far and these], 0 for padding. Sequence i continues sequence
    `origins[i]` of the run before. `rows` names the logits that are wanted (see `ROWS`).
    """

    token_ids: Ids
    positions: Ids
    mask: Ids
    origins: Sequence[int]
    rows: Ids


@dataclass(frozen=True, slots=True)
class State:
    """Keys and values of everything that was run up to here, `columns` tokens a sequence."""

    tensors: tuple[Tensor, ...]
    columns: int

    def first(self, columns: int) -> State:
        """The same for the first tokens alone."""
        if columns == self.columns:
            return self
        kept = (numpy.ascontiguousarray(tensor.data[:, :, :columns]) for tensor in self.tensors)
        return State(tuple(openvino.Tensor(data) for data in kept), columns)

    @property
    def is_cuttable(self) -> bool:
        """Whether the tokens are where `first` cuts."""
        return all(
            len(tensor.shape) == 4
            and tensor.shape[_TOKENS_AXIS] == self.columns
            and tensor.element_type == openvino.Type.f32
            for tensor in self.tensors
        )


class StatefulRequest:
    """An infer request of its own, with the tokens that it holds.

    Args:
        compiled: the compiled model.
        picks_rows: whether it takes `ROWS`.
    """

    def __init__(self, compiled: Compiled, *, picks_rows: bool):
        self._request = compiled.create_infer_request()
        self._inputs = {name for port in compiled.inputs for name in port.get_names()}
        self._picks_rows = picks_rows
        self.columns = 0
        self.forwarded = 0
        """Tokens run so far, padding included."""

    @property
    def continues(self) -> bool:
        """Whether a run can go on where others ended: it keeps a state and takes `beam_idx`."""
        return {"attention_mask", "beam_idx"} <= self._inputs and bool(self._request.query_state())

    def reset(self) -> None:
        """Forget all tokens."""
        self._request.reset_state()
        self.columns = 0

    @telling_out_of_memory()
    def run(self, given: Pass) -> Logits:
        """Logits [rows, vocabulary] of the wanted rows; valid until the next run.

        Raises:
            OutOfMemoryError: the state is undefined then; `reset` or `restore` it.
        """
        rows = given.rows if len(given.rows) else numpy.zeros(1, numpy.int64)
        inputs: dict[str, Any] = {
            "input_ids": given.token_ids,
            "attention_mask": given.mask,
            "position_ids": given.positions,
            "beam_idx": numpy.array(given.origins, numpy.int32),
            ROWS: rows,
        }
        self._request.infer({name: inputs[name] for name in inputs if name in self._inputs})
        self.columns += given.token_ids.shape[1]
        self.forwarded += given.token_ids.size
        logits: Any = self._request.get_tensor("logits").data
        if self._picks_rows:
            return logits[:, 0]
        return logits.reshape(-1, logits.shape[-1])[rows]

    @telling_out_of_memory()
    def save(self) -> State:
        """A copy of the state."""
        copies: list[Tensor] = []
        for variable in self._request.query_state():
            found: Any = variable.state
            copy = openvino.Tensor(found.element_type, found.shape)
            found.copy_to(copy)
            copies.append(copy)
        return State(tuple(copies), self.columns)

    @telling_out_of_memory()
    def restore(self, state: State) -> None:
        """Go on from a saved state."""
        self._request.reset_state()
        for variable, tensor in zip(self._request.query_state(), state.tensors, strict=True):
            variable.state = tensor
        self.columns = state.columns


def tell_out_of_memory(loaded: Any) -> None:
    """Let `generate` of an `OVModelForCausalLM` raise `OutOfMemoryError` too."""
    # No reference to the model from itself, which would keep its memory after the last use.
    own, model = cast(Any, type(loaded)).generate, weakref.ref(loaded)

    @telling_out_of_memory()
    def generate(*arguments: Any, **named: Any) -> Any:
        held: Any = model()
        try:
            return own(held, *arguments, **named)
        finally:
            # A beam search whose first step fails leaves Optimum Intel 2.2 with this mark, by which
            # the next call of whatever kind would run one row for all.
            held._first_iter_beam_search = False

    loaded.generate = generate
